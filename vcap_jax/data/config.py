"""Settings of the data: where prompts and references come from, and how they are read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.data.judge_media import JudgeMediaSettings
from vcap_jax.models.buckets import Buckets


@settings
class DataConfig:
    """Where prompts and references come from."""

    manifest: str | None = None
    """JSONL, a row per image or video; null renders the embedded world."""
    references: str | None = None
    """A reference pool (JSONL); null takes the references in the manifest's rows; samples without
    any are captioned by the starting policy before training, which is the paper's pool for e1."""
    image_prompt: str = "Describe this image in detail."
    """The request that follows an image, where its row has no "prompt" of its own."""
    video_prompt: str = (
        "Describe this video in detail. Divide it into segments, one per line, each beginning with its time range "
        'in seconds like "[0.0 - 12.5]", and end with a line "Summary: ..." about the whole video.'
    )
    """The request that follows a video, where its row has no "prompt" of its own."""
    max_pixels: int | None = Field(default=None, ge=1)
    """Pixels of an image at most, height x width (paper: 6,422,528); null keeps the checkpoint's
    own."""
    max_frames: int | None = Field(default=None, ge=1)
    """Frames of a video at most (paper: 200); null keeps the checkpoint's own."""
    max_frame_tokens: int | None = Field(default=None, ge=1)
    """Tokens of a video's frame at most (paper: 256); null keeps the checkpoint's own."""
    fps: float | None = Field(default=None, gt=0)
    """Video frames sampled per second; null keeps the checkpoint's own."""
    buckets: Buckets = Field(default_factory=Buckets)
    on_bad_sample: Literal["skip", "refuse"] = "skip"
    """What becomes of a sample that cannot be read: "skip" reports it and goes on without it,
    "refuse" ends the run."""
    threads: int = Field(default=2, ge=1)
    """Samples read at the same time."""
    prefetch: int = Field(default=8, ge=1)
    """Samples read ahead."""
    judge_media: JudgeMediaSettings = Field(default_factory=JudgeMediaSettings)
