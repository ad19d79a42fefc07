"""Settings of the data: where prompts and references come from, and how they are read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.data.judge_media import JudgeMediaSettings
from vcap_jax.models.buckets import Buckets
from vcap_jax.system.host_limits import usable_cores


@settings
class DataConfig:
    """Where prompts and references come from."""

    manifest: str | None = None
    """JSONL, a row per image or video, or a folder of them; null renders the embedded world."""
    max_samples: int | None = Field(default=None, ge=1)
    """So many samples of the manifest at most, for a trial; null takes all. Which ones follows from
    their ids, not from the run's seed, so that runs that differ in it have the same. A share is
    held out of these."""
    heldout: str | None = None
    """Another manifest or folder, whose samples are never trained on: they tell whether training helped
    (the evaluator "judged")."""
    heldout_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the manifest's rows that are held out in place of data.heldout. Which ones follows
    from their ids, so that a row stays on its side when others are added. Rows that show a file of a
    held-out one are not trained on either."""
    heldout_seed: int = Field(default=0, ge=0)
    """Another seed holds out other rows. It is not the run's: runs that differ in their seed are
    compared on the same rows."""
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
    """Tokens of a video's frame at most (paper: 256), of short clips up to a quarter more; null keeps
    the checkpoint's own."""
    fps: float | None = Field(default=None, gt=0)
    """Video frames sampled per second; null keeps the checkpoint's own."""
    buckets: Buckets = Field(default_factory=Buckets)
    on_bad_sample: Literal["skip", "refuse"] = "skip"
    """What becomes of a sample that cannot be read: "skip" reports it and goes on without it,
    "refuse" ends the run."""
    threads: int | None = Field(default=None, ge=1)
    """Samples read at the same time; null: as many as there are cores, 16 at most."""
    prefetch: int | None = Field(default=None, ge=1)
    """Samples read ahead; null: a process's share of a step, 32 at most, but one for each thread; for
    references and captions of held-out samples two batches. One takes up to 160 MB of the host's
    memory, a picture of the paper's size 20 MB."""
    judge_media: JudgeMediaSettings = Field(default_factory=JudgeMediaSettings)

    def __post_init__(self) -> None:
        for name in ("image_prompt", "video_prompt"):
            if not getattr(self, name).strip():
                raise ValueError(f"data.{name} has no text: give the request, or leave it out")
        if self.heldout_share and self.heldout is not None:
            raise ValueError("data.heldout and data.heldout_share are both given: leave one of them out")
        if self.heldout_share and self.manifest is None:
            raise ValueError(
                "data.heldout_share takes rows of data.manifest, and there is none: the embedded world has held-out "
                "scenes of its own"
            )

    @property
    def reading_threads(self) -> int:
        """Samples read at the same time."""
        return self.threads or min(16, usable_cores())

    def read_ahead(self, share: int) -> int:
        """Samples that a process reads ahead whose share of a step is ``share``."""
        return self.prefetch or max(self.reading_threads, min(32, share))

    @property
    def holds_out(self) -> bool:
        """Whether samples of the user's own are held out."""
        return self.heldout is not None or self.heldout_share > 0
