"""Sending a picture once: messages with media named by their content hash where the server has them.

A part with media carries ``uuid``, the hash of its content. vLLM keeps what came with a uuid and later takes
``"image_url": null`` with the same uuid for it; other servers get the part without the field.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from vcap_jax.reward.prompts import ChatMessage, ContentPart, ImagePart, VideoPart

V = TypeVar("V")


class Lru(Generic[V]):
    """A mapping that forgets what was not looked at for longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[str, V] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> V | None:
        """The value, which counts as looked at; None where there is none."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: str, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()


@dataclass(frozen=True, kw_only=True)
class Addressed:
    """Messages as one server gets them.

    sent: uuids of the media that go along; named: of those that are only named.
    """

    messages: list[ChatMessage]
    sent: tuple[str, ...]
    named: tuple[str, ...]


def media_uuids(messages: Sequence[ChatMessage]) -> list[str]:
    """The uuids in the messages, in order."""
    return [
        part["uuid"]
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] != "text" and "uuid" in part
    ]


def address(messages: Sequence[ChatMessage], *, keeps: bool, kept: Lru[bool]) -> Addressed:
    """The messages for a server. keeps: it understands uuids. kept: those that it has been given."""
    sent: dict[str, None] = {}
    named: dict[str, None] = {}

    def part_for(part: ContentPart) -> ContentPart:
        if part["type"] == "text" or "uuid" not in part:
            return part
        identity = part["uuid"]
        if not keeps:
            sent[identity] = None
            return _nameless(part)
        if kept.get(identity):
            named[identity] = None
            return _only_named(part)
        sent[identity] = None
        return part

    def message_for(message: ChatMessage) -> ChatMessage:
        content = message["content"]
        if isinstance(content, str):
            return message
        return {"role": message["role"], "content": [part_for(part) for part in content]}

    addressed = [message_for(message) for message in messages]
    return Addressed(messages=addressed, sent=tuple(sent), named=tuple(named))


def _nameless(part: ImagePart | VideoPart) -> ImagePart | VideoPart:
    plain = part.copy()
    del plain["uuid"]
    return plain


def _only_named(part: ImagePart | VideoPart) -> ImagePart | VideoPart:
    return {**part, "image_url": None} if part["type"] == "image_url" else {**part, "video_url": None}
