"""A step's components as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from vcap_jax.grpo.records import GroupResult, NoComponents, weighted_components
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.group import CandidateScore, GroupScores

GONE = CandidateScore(reward=None, failure=Failure(reason="timeout", detail="60 s"))


def result(index: int, candidates: Sequence[CandidateScore], weights: Mapping[str, float]) -> GroupResult:
    return GroupResult(
        index=index,
        sample_id=f"sample {index}",
        captions=("a",) * len(candidates),
        lengths=np.ones(len(candidates), np.int32),
        truncated=np.zeros(len(candidates), bool),
        scores=GroupScores(
            sample_id=f"sample {index}", step=0, candidates=tuple(candidates), weights=weights
        ),
    )


def candidate(**components: float) -> CandidateScore:
    return CandidateScore(reward=1.0, components=components)


def test_components_stand_by_name_and_failures_are_empty() -> None:
    first = result(0, [candidate(a=1, b=2, other=7), GONE], {"a": 0.5, "b": 0.1})
    second = result(1, [candidate(b=4, c=3), candidate(b=5, c=6)], {"b": 0.2, "c": 1.0})
    components, weights = weighted_components([first, second, result(2, [GONE, GONE], {})])
    assert components.tolist() == [[[1, 2, 0], [0, 0, 0]], [[0, 4, 3], [0, 5, 6]], [[0] * 3] * 2]
    assert weights.tolist() == [[0.5, 0.1, 0], [0, 0.2, 1], [0, 0, 0]]


def test_a_reward_that_is_no_sum_is_named_with_the_remedy() -> None:
    with pytest.raises(
        NoComponents, match=r"'sample 1' gives no weights .*: have the family give them, or set it"
    ):
        weighted_components([result(0, [candidate(a=1)], {"a": 1}), result(1, [candidate(a=1)], {})])
