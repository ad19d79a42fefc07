"""Chat messages as OpenAI's API spells them, with the fields that vLLM adds, in types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, TypeAlias, TypedDict


class TextPart(TypedDict):
    """Words."""

    type: Literal["text"]
    text: str


class MediaUrl(TypedDict):
    """Where a picture or video is, mostly inside the address itself (``data:...``)."""

    url: str


class ImagePart(TypedDict):
    """A picture. uuid: names its content; None in place of the address means what the server has under that name."""

    type: Literal["image_url"]
    image_url: MediaUrl | None
    uuid: NotRequired[str]


class VideoPart(TypedDict):
    """A video; ``uuid`` as for a picture."""

    type: Literal["video_url"]
    video_url: MediaUrl | None
    uuid: NotRequired[str]


ContentPart: TypeAlias = TextPart | ImagePart | VideoPart


class ChatMessage(TypedDict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str | Sequence[ContentPart]
