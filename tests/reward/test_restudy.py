"""Other weights for stored answers, without a judge."""

import sqlite3
from pathlib import Path

import pytest

from tests.reward.stored import candidate, put
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.restudy import Coverage, Effect, Restudied, restudy
from vcap_jax.reward.store import (
    StoreError,
    read_candidates,
)


def test_the_same_weights_give_the_same_rewards_bit_for_bit(studied: Path) -> None:
    rows = list(restudy(studied, RewardWeights()))
    whole, local = 0.05 * 9 + 0.04 * 8 + 0.01 * 7, 0.05 * 4 + 0.04 * 3 + 0.01 * 2
    assert [row.reward for row in rows] == [whole, None, 0.0, whole + 0.1 * local, whole + 0.1 * 0.0, None]


def test_other_weights(studied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = RewardWeights(correctness=0.1, completeness=0.0, text_quality=0.0, local=0.0)
    assert [row.reward for row in restudy(studied, weights)] == [
        pytest.approx(0.9),
        None,
        0.0,
        *[pytest.approx(0.9)] * 3,
    ]
    told = Coverage()
    for row in restudy(studied, weights):
        told.add(row)
    assert (
        str(told) == "6 candidates of 2 steps, 1 of them without a stored answer that they need (reward null)"
    )


def test_candidates_without_a_local_pass_are_counted(studied: Path) -> None:
    told = Coverage()
    for row in restudy(studied, RewardWeights(local=0.5)):
        told.add(row)
    assert told.without_local == 3
    assert str(told).endswith("; 3 without a local pass, where the weight local is of no account")


def test_pairs_of_a_group_are_compared_before_and_after() -> None:
    """By hand: two groups of one step. 1 < 2 < 3 becomes 2, 2, 1; a tie of 1 becomes 1 < 2, beside one masked."""
    effect = Effect()
    groups = {"a": ([1.0, 2.0, 3.0], [2.0, 2.0, 1.0]), "b": ([1.0, 1.0, None], [1.0, 2.0, 9.0])}
    for name, (was, now) in groups.items():
        for index, (before, after) in enumerate(zip(was, now, strict=True)):
            kept = candidate(step=0, sample_id=name, index=index, verdicts={}, reward=before)
            effect.add(Restudied(candidate=kept, reward=after))
    effect.close()
    assert (effect.pairs, effect.reversed, effect.tied, effect.parted) == (4, 2, 1, 1)
    assert (effect.groups, effect.other_best, effect.scored) == (2, 2, 5)
    assert str(effect).splitlines() == [
        "mean reward 1.6, where it was 1.6",
        (
            "of 4 pairs of captions of one group 50.0% are ordered the other way round, 25.0% become a tie, "
            "25.0% were a tie"
        ),
        "another caption is the best in 2 of 2 groups",
    ]
    assert str(Effect()) == "no candidate has a reward before and after"


def test_rewards_that_rounding_alone_tells_apart_are_no_new_order() -> None:
    effect = Effect()
    equal = (0.05 * 4 + 0.04 * 1 + 0.01 * 4, 0.04 * 6 + 0.01 * 4)
    assert equal[0] != equal[1]
    for index, after in enumerate(equal):
        kept = candidate(step=0, sample_id="a", index=index, verdicts={}, reward=0.5)
        effect.add(Restudied(candidate=kept, reward=after))
    effect.close()
    assert (effect.pairs, effect.parted, effect.other_best) == (1, 0, 0)


def test_rewards_of_another_family_have_no_such_weights(studied: Path) -> None:
    other = candidate(
        step=9, sample_id="b", family="imitation", components={"cider": 3.0}, verdicts={}, reward=0.3
    )
    put(studied, [other])
    assert [c.components for c, _ in read_candidates(studied)][-1] == {"cider": 3.0}
    with pytest.raises(StoreError, match="family 'imitation'"):
        list(restudy(studied, RewardWeights()))


def test_reading_does_not_wait_for_a_writer(studied: Path) -> None:
    with sqlite3.connect(studied, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        # Who waits for a lock of SQLite's does so for a while and then raises that the database is locked.
        assert len(list(restudy(studied, RewardWeights()))) == 6
        writer.execute("ROLLBACK")
