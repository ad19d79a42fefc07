"""Settings of supervised fine-tuning; model, data, mesh and logging are those of the run."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from vcap_jax.configuration import ConfigError, settings
from vcap_jax.training.optimizer import OptimizerConfig


@settings
class SFTConfig:
    """Supervised fine-tuning on captions (launch/sft.py, launch/distill.py)."""

    captions: str | None = None
    """A pool of captions (the format of reference pools); null takes the references in the
    manifest's rows."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the samples."""
    max_steps: int | None = Field(default=None, ge=1)
    """The number of optimizer steps, whatever the epochs."""
    groups_per_step: int = Field(default=32, ge=1)
    """Prompts per optimizer step, of all processes together."""
    groups_per_micro_batch: int = Field(default=4, ge=1)
    """Prompts computed at a time, of all processes together; with several, a multiple of the
    devices."""
    max_caption_tokens: int | None = Field(default=None, ge=1)
    """Longer captions are left out and counted, for a caption cut short would teach to stop in the
    middle; null takes rollout.max_completion_length."""
    caption_buckets: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Lengths that the captions of a micro-batch are padded to (max_caption_tokens is always one of
    them); each compiles once."""
    logprob_chunk: int = Field(default=512, ge=1)
    """Caption positions whose vocabulary logits exist at a time."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-5, warmup_ratio=0.05, min_lr_ratio=0.0)
    )
    """The defaults differ from optimizer.* in the learning rate, which is ms-swift's for full
    parameters, in the cosine's end at 0, also ms-swift's, and in the warm-up, which is this
    project's (ms-swift has none)."""

    def __post_init__(self) -> None:
        if self.groups_per_step % self.groups_per_micro_batch:
            raise ValueError(
                f"sft.groups_per_step {self.groups_per_step} must be a multiple of "
                f"sft.groups_per_micro_batch {self.groups_per_micro_batch}"
            )

    def total_steps(self, samples: int) -> int:
        """Optimizer steps: ``max_steps`` if given, else floor(samples / groups_per_step) per epoch.

        Raises ConfigError if the data do not fill one step.
        """
        if self.max_steps is not None:
            return self.max_steps
        steps = samples // self.groups_per_step * self.epochs
        if steps < 1:
            raise ConfigError(
                f"{samples} samples do not fill one step of {self.groups_per_step} groups; "
                "lower sft.groups_per_step (and sft.groups_per_micro_batch with it), or set sft.max_steps to go "
                "through them more than once"
            )
        return steps
