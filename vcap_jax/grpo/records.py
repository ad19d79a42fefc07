"""What is known of a step's groups: by the process that drew them, and by all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from jaxtyping import Float

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

    tokens: [G, T] int32. sampler_logprobs: [G, T] float32, the rollout engine's (``SampledGroup.logprobs``).
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


class NoComponents(ValueError):
    """The rewards of a group are no weighted sum of components; the message names the remedy."""


def weighted_components(
    results: Sequence[GroupResult],
) -> tuple[Float[np.ndarray, "B G K"], Float[np.ndarray, "B K"]]:
    """The components of every candidate and the weights of every group, by all names of the step in order.

    0 where a candidate was not scored, and where a group has no such component.
    Raises NoComponents for a group with a scored candidate whose family gives no weights.
    """
    names = list(dict.fromkeys(name for result in results for name in result.scores.weights))
    size = max((len(result.scores.candidates) for result in results), default=0)
    components = np.zeros((len(results), size, len(names)))
    weights = np.zeros((len(results), len(names)))
    for row, result in enumerate(results):
        given, candidates = result.scores.weights, result.scores.candidates
        if not given and any(candidate.reward is not None for candidate in candidates):
            raise NoComponents(
                "grpo.advantages.per_component needs a reward that is a weighted sum of components, and the reward of "
                f"sample {result.sample_id!r} gives no weights (GroupScores.weights): have the family give them, or "
                "set it to false in a new run, whose data.references can name this one's"
            )
        for column, name in enumerate(names):
            weights[row, column] = given.get(name, 0.0)
            for place, candidate in enumerate(candidates):
                if candidate.reward is not None:
                    components[row, place, column] = candidate.components.get(name, 0.0)
    return components, weights
