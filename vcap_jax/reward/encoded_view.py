"""What one pass over a group shows the judge, and whether its prompt really holds that: nothing dropped, resampled or
moved in time.

vLLM tells the token ids of a prompt on request, with one placeholder per visual token. Each picture is a run of
``<|image_pad|>``; each pair of video frames is a run of ``<|video_pad|>`` of one common length with its time
before it. How long a run is, is the server's pixel budget and its own affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.media import JudgeVideo, TimeWindow
from vcap_jax.reward.errors import MediaMismatch
from vcap_jax.reward.prompts import ContentPart, content_hash, media_parts, no_media_notice, video_parts
from vcap_jax.system.json_values import JsonObject

IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"

_REMEDY = (
    'serve the judge with --media-io-kwargs \'{"video":{"num_frames":-1}}\' --trust-request-mm-kwargs '
    "(python gpu_judge/serve.py does), or set judge.video_input to frames"
)
_TIME = re.compile(r"<(\d+\.\d) seconds>")


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
    fields: of the request body beside ``messages``. of_vllm: more of them, for a server that calls itself vLLM.
    pictures: how many images the prompt must hold. video: what it must say of a video, None without one.
    """

    parts: tuple[ContentPart, ...]
    key: str
    fields: JsonObject = field(default_factory=dict)
    of_vllm: JsonObject = field(default_factory=dict)
    pictures: int = 0
    video: PromptedVideo | None = None


def show(media: EncodedMedia, window: TimeWindow | None, *, as_video: bool) -> EncodedView:
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


def show_nothing(media: EncodedMedia, window: TimeWindow | None) -> EncodedView:
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


def runs(ids: Sequence[int], token: int) -> list[int]:
    """Lengths of the uninterrupted runs of ``token``."""
    return [len(list(run)) for is_token, run in groupby(ids, lambda i: i == token) if is_token]


def collapsed(ids: Sequence[int], token: int) -> list[int]:
    """The ids with every run of ``token`` shortened to one: what is worth turning into text."""
    short: list[int] = []
    for i in ids:
        if i != token or not short or short[-1] != token:
            short.append(i)
    return short


def check_pictures(shown: EncodedView, ids: Sequence[int], image_pad: int) -> None:
    """Raises MediaMismatch unless the prompt holds as many images as were sent."""
    found = runs(ids, image_pad)
    if len(found) != shown.pictures:
        raise MediaMismatch(
            f"{shown.pictures} pictures were sent, and the judge's prompt holds {len(found)} "
            f"({sum(found)} visual tokens): raise the server's --limit-mm-per-prompt "
            "(serve.py --images-per-prompt)"
        )


def check_video(video: PromptedVideo, ids: Sequence[int], video_pad: int, text: str) -> None:
    """Raises MediaMismatch unless the prompt holds every pair of frames at its time.

    text: of the prompt, with runs of the placeholder shortened to one.
    """
    found = runs(ids, video_pad)
    sent = f"{video.frames} frames in {len(video.pair_times)} pairs were sent"
    if len(found) != len(video.pair_times) or len(set(found)) != 1:
        raise MediaMismatch(
            f"{sent}, and the judge's prompt holds {len(found)} pairs ({sum(found)} visual tokens): the server "
            f"has dropped or resampled frames; {_REMEDY}"
        )
    told = _times_before(text)
    if told != list(video.pair_times):
        wrong = next(
            (k for k, pair in enumerate(zip(told, video.pair_times, strict=False)) if len(set(pair)) > 1),
            None,
        )
        where = f"{len(told)} times" if wrong is None else f"{told[wrong]} s for {video.pair_times[wrong]} s"
        raise MediaMismatch(f"{sent}, and the judge's prompt announces {where}; {_REMEDY}")


def _times_before(text: str) -> list[str]:
    """The time right before each video placeholder."""
    return [(_TIME.findall(piece) or ["no time"])[-1] for piece in text.split(VIDEO_PAD)[:-1]]


def check_same(shown: EncodedView, first: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Raises MediaMismatch if the same media make another number of tokens than at first."""
    if first and now and dict(first) != dict(now):
        raise MediaMismatch(
            f"{shown.video.frames if shown.video else shown.pictures} pictures or frames made {dict(first)} "
            f"prompt tokens at first and {dict(now)} now: the server treats the same media differently"
        )


def unverifiable(video: PromptedVideo, why: str) -> MediaMismatch:
    """What to raise where a server does not tell what became of a video."""
    return MediaMismatch(
        f"{video.frames} frames were sent as a video, and whether all of them reached the judge cannot be "
        f"seen: {why}. Use vLLM with a Qwen3-VL judge, or set judge.video_input to frames"
    )
