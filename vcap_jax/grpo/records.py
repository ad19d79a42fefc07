"""What is known of a step's groups: by the process that drew them, and by all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from vcap_jax.data.examples import Example
from vcap_jax.grpo.advantages import GroupAdvantages
from vcap_jax.reward.group import GroupScores
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.system.json_records import array_of


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """What every process gets to know of a group: enough for advantages, metrics and alarms.

    index: in the step. captions: G texts; lengths: [G] tokens; truncated: [G] bool; scores: the reward family's.
    """

    index: int
    sample_id: str
    captions: tuple[str, ...]
    lengths: Annotated[np.ndarray, array_of(np.int32)]
    truncated: Annotated[np.ndarray, array_of(bool)]
    scores: GroupScores


@dataclass(frozen=True, kw_only=True)
class GroupRecord(GroupResult):
    """One group with everything known of it.

    tokens: [G, T] int32. sampler_logprobs: [G, T] float32, what the rollout engine drew each token with; None from the
    JAX sampler.
    """

    example: Example
    reference: str | None
    tokens: np.ndarray
    sampler_logprobs: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class StepRollout:
    """This process's groups of a step in order, and the batches whose prompts and features stay on its devices for the
    update.

    rollout_seconds: encoding and decoding; judge_seconds: waiting for scores when there was nothing else to do.
    measured: the rollout engine's own metrics.
    """

    batches: tuple[RolloutBatch, ...]
    records: tuple[GroupRecord, ...]
    rollout_seconds: float
    judge_seconds: float
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """The rollouts of all processes. results: in the order of their indices; seconds: of the slowest."""

    results: tuple[GroupResult, ...]
    rollout_seconds: float
    judge_seconds: float


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What can be told of step ``step`` (1-based) when it has ended.

    records: of this process's groups. outcome, advantages: of the groups of all. update: the metrics of the update and
    of this process's rollout engine.
    judge: what it had to do in this step. skipped_samples: since the beginning of the run.
    data_seconds: of waiting for samples. compiles: of this process.
    """

    step: int
    records: tuple[GroupRecord, ...]
    outcome: StepOutcome
    advantages: GroupAdvantages
    update: Mapping[str, float]
    judge: JudgeStatistics
    skipped_samples: int
    data_seconds: float
    update_seconds: float
    step_seconds: float
    compiles: int
