"""Settings of a GRPO step."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.grpo.advantages import AdvantageConfig, OverlongConfig
from vcap_jax.grpo.objective import ObjectiveConfig


@settings
class GRPOConfig:
    """The shape of a GRPO step."""

    groups_per_step: int = Field(default=32, ge=1)
    """Prompts per step; times rollout.group_size it is the effective batch (paper: 256)."""
    groups_per_micro_batch: int = Field(default=4, ge=1)
    """Prompts that are looked at, and whose gradients are computed, at a time, padded alike; best a
    multiple of the devices. Where it does not divide groups_per_step, the last micro-batch of a
    step is filled up with groups that take no part."""
    num_iterations: int = Field(default=1, ge=1)
    """Optimizer updates on the same captions; beyond 1 (or with rollout.ahead) the old policy's
    log-probabilities are computed once and the clip begins to matter."""
    logprob_chunk: int = Field(default=512, ge=1)
    """Caption positions whose vocabulary logits exist at a time."""
    caption_buckets: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Lengths that a step's captions are padded to in the update (rollout.max_completion_length is
    always one of them); each compiles once."""
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig)
    advantages: AdvantageConfig = Field(default_factory=AdvantageConfig)
    overlong: OverlongConfig = Field(default_factory=OverlongConfig)

    def __post_init__(self) -> None:
        if self.advantages.per_component and self.overlong.weight:
            raise ValueError(
                "grpo.overlong.weight is taken off the reward as a whole, and grpo.advantages.per_component knows its "
                "components alone: set grpo.overlong.weight to 0, or grpo.advantages.per_component to false"
            )
