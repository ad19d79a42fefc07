"""Whether the judge's prompt really holds what was sent: nothing dropped, resampled or moved in time.

vLLM tells the token ids of a prompt on request, with one placeholder per visual token. Each picture is a run of
``<|image_pad|>``; each pair of video frames is a run of ``<|video_pad|>`` of one common length with its time
before it. How long a run is, is the server's pixel budget and its own affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from vcap_jax.reward.encoded_view import EncodedView, PromptedVideo
from vcap_jax.reward.errors import MediaMismatch

IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"

_REMEDY = (
    'serve the judge with --media-io-kwargs \'{"video":{"num_frames":-1}}\' --trust-request-mm-kwargs '
    "(python gpu_judge/serve.py does), or set judge.video_input to frames"
)
_TIME = re.compile(r"<(\d+\.\d) seconds>")


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
