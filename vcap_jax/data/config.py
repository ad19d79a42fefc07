"""Settings of the data: where prompts and references come from, and how they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vcap_jax.data.judge_media import JudgeMediaSettings
from vcap_jax.models.buckets import Buckets


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where prompts and references come from.

    manifest: JSONL, a row per image or video; None renders the embedded world.
    references: a reference pool (JSONL). None takes the references in the manifest's rows; samples without any
        are captioned by the starting policy before training, which is the paper's pool for e1.
    image_prompt, video_prompt: the request that follows the picture, where a row has no "prompt" of its own.
    max_pixels: of an image, height x width (paper: 6,422,528); None keeps the checkpoint's own.
    max_frames, max_frame_tokens: of a video (paper: 200 and 256); None keeps the checkpoint's own.
    fps: video frames sampled per second; None keeps the checkpoint's own.
    on_bad_sample: "skip" reports a sample that cannot be read and goes on without it, "refuse" ends the run.
    threads, prefetch: samples read at the same time, and read ahead.
    """

    manifest: str | None = None
    references: str | None = None
    image_prompt: str = "Describe this image in detail."
    video_prompt: str = (
        "Describe this video in detail. Divide it into segments, one per line, each beginning with its time range "
        'in seconds like "[0.0 - 12.5]", and end with a line "Summary: ..." about the whole video.'
    )
    max_pixels: int | None = None
    max_frames: int | None = None
    max_frame_tokens: int | None = None
    fps: float | None = None
    buckets: Buckets = field(default_factory=Buckets)
    on_bad_sample: Literal["skip", "refuse"] = "skip"
    threads: int = 2
    prefetch: int = 8
    judge_media: JudgeMediaSettings = field(default_factory=JudgeMediaSettings)

    def __post_init__(self) -> None:
        for name in ("threads", "prefetch"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("max_pixels", "max_frames", "max_frame_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"data.{name} is {value}; it must be at least 1, or null for the checkpoint's own"
                )
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise ValueError(
                f"data.fps is {self.fps}; it must be positive and finite, or null for the checkpoint's own"
            )
