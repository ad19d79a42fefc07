"""Sending a picture once: messages with media named by their content hash where the server has them.

A part with media carries ``uuid``, the hash of its content. vLLM keeps what came with a uuid and later takes
``"image_url": null`` with the same uuid for it; other servers get the part without the field.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

V = TypeVar("V")
Messages = Sequence[Mapping[str, Any]]
_MEDIA = ("image_url", "video_url")


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

    def drop(self, key: str) -> None:
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()


@dataclass(frozen=True, kw_only=True)
class Addressed:
    """Messages as one server gets them.

    sent: uuids of the media that go along; named: of those that are only named.
    """

    messages: list[dict[str, Any]]
    sent: tuple[str, ...]
    named: tuple[str, ...]


def media_uuids(messages: Messages) -> list[str]:
    """The uuids in the messages, in order."""
    return [part["uuid"] for part in _parts(messages) if "uuid" in part]


def address(messages: Messages, *, keeps: bool, kept: Lru[bool]) -> Addressed:
    """The messages for a server. keeps: it understands uuids. kept: those that it has been given."""
    sent: dict[str, None] = {}
    named: dict[str, None] = {}

    def part_for(part: Mapping[str, Any]) -> dict[str, Any]:
        identity = part.get("uuid")
        if identity is None:
            return dict(part)
        kind = next(kind for kind in _MEDIA if kind in part)
        if not keeps:
            sent[identity] = None
            return {name: value for name, value in part.items() if name != "uuid"}
        if kept.get(identity):
            named[identity] = None
            return {**part, kind: None}
        sent[identity] = None
        return dict(part)

    addressed = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = [part_for(part) if isinstance(part, Mapping) else part for part in content]
            message = {**message, "content": parts}
        addressed.append(dict(message))
    return Addressed(messages=addressed, sent=tuple(sent), named=tuple(named))


def _parts(messages: Messages) -> list[Mapping[str, Any]]:
    contents = [message.get("content") for message in messages]
    return [
        part
        for content in contents
        if isinstance(content, list)
        for part in content
        if isinstance(part, Mapping)
    ]
