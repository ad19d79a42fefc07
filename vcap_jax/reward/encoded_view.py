"""What one pass over a group shows the judge: content parts, their identity, and what must come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vcap_jax.data.media import JudgeMedia, JudgeVideo, TimeWindow
from vcap_jax.reward.chat import ContentPart
from vcap_jax.reward.prompts import content_hash, media_parts, no_media_notice, video_parts
from vcap_jax.system.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class PromptedVideo:
    """What the prompt must say of a video: a time before each pair of frames.

    frames: how many were given. pair_times: one text such as "1.5" for each pair.
    """

    frames: int
    pair_times: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class EncodedView:
    """The visual part of a question.

    parts: content parts that lead the message; none of them is a picture where nothing is shown.
    key: content hash of all of it, times included.
    fields: of the request body beside ``messages``.
    pictures: how many images the prompt must hold. video: what it must say of a video, None without one.
    """

    parts: tuple[ContentPart, ...]
    key: str
    fields: JsonObject = field(default_factory=dict)
    pictures: int = 0
    video: PromptedVideo | None = None


def show(media: JudgeMedia, window: TimeWindow | None, *, as_video: bool) -> EncodedView:
    """The pictures of a group, or of a window of its video. Runs in a worker thread: it encodes and hashes.

    Raises ValueError for media without pictures, and whatever a decoder raises.
    """
    if as_video and media.modality == "video":
        video = media.video(window)
        parts, fields = video_parts(video)
        told = PromptedVideo(frames=len(video.frames), pair_times=pair_times(video))
        return EncodedView(parts=tuple(parts), key=_key(parts), fields=fields, video=told)
    frames = media.frames(window)
    if not frames:
        raise ValueError("no frames")
    parts = media_parts(frames)
    return EncodedView(parts=tuple(parts), key=_key(parts), pictures=len(frames))


def show_nothing(media: JudgeMedia, window: TimeWindow | None) -> EncodedView:
    """The words that stand in for the pictures in the ablation without them."""
    parts = no_media_notice("picture" if media.modality == "image" else "frames", window)
    return EncodedView(parts=tuple(parts), key=_key(parts))


def pair_times(video: JudgeVideo) -> tuple[str, ...]:
    """The times that Qwen3-VL's processor announces: of each two frames the mean, the last alone if odd."""
    seconds = [index / video.fps for index in video.indices]
    if len(seconds) % 2:
        seconds.append(seconds[-1])
    return tuple(f"{(a + b) / 2:.1f}" for a, b in zip(seconds[::2], seconds[1::2], strict=True))


def _key(parts: Sequence[ContentPart]) -> str:
    return content_hash(*(part["text"] if part["type"] == "text" else part["uuid"] for part in parts))
