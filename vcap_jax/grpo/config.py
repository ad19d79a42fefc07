"""Settings of a GRPO step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vcap_jax.grpo.advantages import AdvantageConfig, OverlongConfig
from vcap_jax.grpo.objective import ObjectiveConfig


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """The shape of a GRPO step.

    groups_per_step: prompts per optimizer step; times rollout.group_size it is the effective batch (paper: 256).
    groups_per_micro_batch: prompts whose gradients are computed at a time; best a multiple of the devices. Where it
        does not divide groups_per_step, the last micro-batch of a step is filled up with groups that take no part.
    num_iterations: optimizer updates on the same captions; beyond 1 the old policy's log-probabilities are
        computed once and the clip begins to matter.
    logprob_chunk: caption positions whose vocabulary logits exist at a time.
    caption_buckets: lengths that a step's captions are padded to in the update (rollout.max_completion_length is
        always one of them); each compiles once.
    """

    groups_per_step: int = 32
    groups_per_micro_batch: int = 4
    num_iterations: int = 1
    logprob_chunk: int = 512
    caption_buckets: tuple[int, ...] = ()
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    advantages: AdvantageConfig = field(default_factory=AdvantageConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)

    def __post_init__(self) -> None:
        for name in ("groups_per_step", "groups_per_micro_batch", "num_iterations", "logprob_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"grpo.{name} is {getattr(self, name)}; it must be at least 1")
        if any(length < 1 for length in self.caption_buckets):
            raise ValueError(
                f"grpo.caption_buckets is {list(self.caption_buckets)}; each must be at least 1 token"
            )
