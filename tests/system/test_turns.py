"""Turns on shared devices: one at a time."""

from __future__ import annotations

import pytest

from vcap_jax.system.turns import Turns, ending


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


def test_what_fails_in_a_turn_is_told_and_not_what_fails_when_it_is_ended_after_that() -> None:
    ended = []

    def end() -> None:
        ended.append(True)
        raise KeyError("it keeps its memory")

    with pytest.raises(ValueError, match="lost"), ending(end, KeyError):
        raise ValueError("lost")
    with pytest.raises(KeyError, match="keeps its memory"), ending(end, KeyError):
        pass
    with pytest.raises(KeyError), ending(end, OSError):
        raise ValueError("lost")  # a mistake in the ending is told in any case
    assert len(ended) == 3
