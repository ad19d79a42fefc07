"""What is known of a step's groups: components as arrays, and the row of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from vcap_jax.grpo.advantages import AdvantageConfig, group_advantages
from vcap_jax.grpo.records import GroupResult, NoComponents, weighted_components
from vcap_jax.grpo.step_metrics import reward_metrics
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
    half_gone = replace(GONE, components={"a": 3.0})
    first = result(0, [candidate(a=1, b=2, other=7), half_gone], {"a": 0.5, "b": 0.1})
    second = result(1, [candidate(b=4, c=3), candidate(b=5, c=6)], {"b": 0.2, "c": 1.0})
    components, weights = weighted_components([first, second, result(2, [GONE, GONE], {})])
    assert components.tolist() == [[[1, 2, 0], [0, 0, 0]], [[0, 4, 3], [0, 5, 6]], [[0] * 3] * 2]
    assert weights.tolist() == [[0.5, 0.1, 0], [0, 0.2, 1], [0, 0, 0]]


def test_a_reward_that_is_no_sum_is_named_with_the_remedy() -> None:
    with pytest.raises(
        NoComponents, match=r"'sample 1' gives no weights .*: have the family give them, or set it"
    ):
        weighted_components([result(0, [candidate(a=1)], {"a": 1}), result(1, [candidate(a=1)], {})])


def test_a_row_tells_means_over_what_was_scored() -> None:
    """Of three groups one has a single scored caption, and no spread that counts."""

    def scored(reward: float, **components: float) -> CandidateScore:
        return CandidateScore(reward=reward, components=components)

    half_gone = replace(GONE, components={"a": 100.0})
    rows = [[scored(1, a=2), scored(5, a=4, b=7)], [scored(3, a=6), half_gone], [scored(2), scored(2)]]
    results = [result(index, row, {}) for index, row in enumerate(rows)]
    results[0] = replace(
        results[0],
        captions=("a", "b"),
        lengths=np.array([4, 8], np.int32),
        truncated=np.array([False, True]),
    )
    rewards = np.array([[1.0, 5.0], [3.0, np.nan], [2.0, 2.0]])
    assert reward_metrics(results, group_advantages(rewards, np.isfinite(rewards), AdvantageConfig())) == {
        "reward/mean": pytest.approx(13 / 5),
        "reward/std": pytest.approx(8**0.5 / 2),
        "reward/a": pytest.approx(4),
        "reward/b": pytest.approx(7),
        "length/mean": pytest.approx(16 / 6),
        "length/max": 8,
        "length/truncated": pytest.approx(1 / 6),
        "captions/distinct": pytest.approx((1 + 0.5 + 0.5) / 3),
        "judge/failed": pytest.approx(1 / 6),
        "groups/dropped": 1,
        "groups/flat": 1,
    }
