"""Other weights for stored answers, without a judge."""

import sqlite3
from pathlib import Path

import pytest

from tests.reward.stored import candidate, put
from vcap_jax.reward.aggregation import RewardWeights
from vcap_jax.reward.restudy import Coverage, restudy
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
