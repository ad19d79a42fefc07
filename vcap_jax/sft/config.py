"""Settings of supervised fine-tuning; model, data, mesh and logging are those of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from vcap_jax.configuration import ConfigError
from vcap_jax.training.optimizer import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class SFTConfig:
    """Supervised fine-tuning on captions (launch/sft.py, launch/distill.py).

    captions: a pool of captions (the format of reference pools); None takes the references in the manifest's rows.
    epochs: passes over the samples; max_steps: the number of optimizer steps, whatever the epochs.
    groups_per_step: prompts per optimizer step; groups_per_micro_batch: those computed at a time. Both are of all
        processes together; with several, the latter must be a multiple of the devices.
    max_caption_tokens: longer captions are left out and counted, for a caption cut short would teach to stop in the
        middle; None takes rollout.max_completion_length.
    caption_buckets: lengths that the captions of a micro-batch are padded to (max_caption_tokens is always one of
        them); each compiles once.
    logprob_chunk: caption positions whose vocabulary logits exist at a time.
    optimizer: the defaults differ from optimizer.* in the learning rate, which is ms-swift's for full parameters, in
        the cosine's end at 0, also ms-swift's, and in the warm-up, which is this project's (ms-swift has none).
    """

    captions: str | None = None
    epochs: int = 1
    max_steps: int | None = None
    groups_per_step: int = 32
    groups_per_micro_batch: int = 4
    max_caption_tokens: int | None = None
    caption_buckets: tuple[int, ...] = ()
    logprob_chunk: int = 512
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-5, warmup_ratio=0.05, min_lr_ratio=0.0)
    )

    def __post_init__(self) -> None:
        for name in ("epochs", "groups_per_step", "groups_per_micro_batch", "logprob_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"sft.{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("max_steps", "max_caption_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"sft.{name} is {value}; it must be at least 1, or null")
        if any(length < 1 for length in self.caption_buckets):
            raise ValueError(
                f"sft.caption_buckets is {list(self.caption_buckets)}; each must be at least 1 token"
            )
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
                [
                    (
                        f"{samples} samples do not fill one step of {self.groups_per_step} groups; "
                        "lower sft.groups_per_step or set sft.max_steps to go through them more than once"
                    )
                ]
            )
        return steps
