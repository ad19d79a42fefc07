"""Turns on shared devices: one at a time."""

from __future__ import annotations

import pytest

from vcap_jax.system.turns import Turns


def test_one_has_the_devices_at_a_time_and_they_are_the_trainers_otherwise() -> None:
    turns = Turns()
    assert turns.whose is None
    with turns.of("the judge"):
        assert turns.whose == "the judge"
        with (
            pytest.raises(RuntimeError, match="the turn of the judge, and the rollout servers begin"),
            turns.of("the rollout servers"),
        ):
            raise AssertionError("two at once")
        assert turns.whose == "the judge"
    assert turns.whose is None


def test_a_turn_that_fails_is_over() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="lost"), turns.of("the judge"):
        raise ValueError("lost")
    with turns.of("the rollout servers"):
        assert turns.whose == "the rollout servers"
