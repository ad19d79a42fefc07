"""The rules that turn intervals into verdicts."""

from __future__ import annotations

from statistics import stdev

import pytest
from scipy.special import stdtrit

from vcap_jax.studies.estimates import Interval, over_seeds
from vcap_jax.studies.verdicts import MOST_SEEDS, Outcome, Verdict, judge, seeds_to_tell, together


def interval(low: float, high: float, seeds: int = 3) -> Interval:
    middle = (low + high) / 2
    return Interval(value=middle, low=low, high=high, by_seed=(middle,) * seeds)


FIRST, SECOND = interval(0.6, 0.7), interval(0.4, 0.5)


@pytest.mark.parametrize(
    ("kind", "gap", "verdict"),
    [
        ("more", (0.01, 0.2), Verdict.HOLDS),
        ("more", (0.0001, 0.002), Verdict.HOLDS),
        ("more", (-0.01, 0.2), Verdict.CANNOT_TELL),
        ("more", (-0.2, -0.01), Verdict.DOES_NOT),
        ("more", (-0.004, 0.005), Verdict.DOES_NOT),
        ("less", (-0.2, -0.01), Verdict.HOLDS),
        ("less", (-0.2, 0.05), Verdict.CANNOT_TELL),
        ("less", (0.01, 0.2), Verdict.DOES_NOT),
        ("same", (-0.005, 0.009), Verdict.HOLDS),
        ("same", (-0.005, 0.02), Verdict.CANNOT_TELL),
        ("same", (0.02, 0.05), Verdict.DOES_NOT),
        ("same", (-0.05, -0.02), Verdict.DOES_NOT),
        ("apart", (0.1, 0.3), Verdict.HOLDS),
    ],
)
def test_verdicts_follow_the_interval_of_the_difference(kind, gap, verdict):
    assert judge(kind, interval(*gap), FIRST, SECOND, margin=0.01).verdict is verdict


def test_a_difference_that_is_there_but_too_small_to_matter_is_called_so():
    small, large = interval(0.001, 0.005), interval(0.001, 0.02)
    assert "that matters" in judge("more", small, FIRST, SECOND, margin=0.01).reason
    assert "that matters" not in judge("more", large, FIRST, SECOND, margin=0.01).reason


def test_more_and_less_are_each_others_mirror():
    for low in (-0.3, -0.02, 0.001):
        gap, back = interval(low, low + 0.05), interval(-low - 0.05, -low)
        assert (
            judge("more", gap, FIRST, SECOND, margin=0.01).verdict
            is judge("less", back, SECOND, FIRST, margin=0.01).verdict
        )


def test_apart_needs_intervals_that_do_not_overlap():
    for reach in (0.62, 0.72):  # below the first arm's mean, and above its interval
        outcome = judge("apart", interval(0.05, 0.1), FIRST, interval(0.5, reach), margin=0.01)
        assert outcome.verdict is Verdict.CANNOT_TELL
        assert "overlap" in outcome.reason


def test_at_the_best_possible_value_no_difference_can_be_told():
    near = interval(0.99, 1.0)
    gap = interval(-0.004, 0.004)
    assert judge("more", gap, near, near, margin=0.01, best=1.0).verdict is Verdict.CANNOT_TELL
    assert judge("more", gap, near, near, margin=0.01).verdict is Verdict.DOES_NOT
    for arms in ((near, FIRST), (FIRST, near)):  # one of the two has room
        assert judge("more", gap, *arms, margin=0.01, best=1.0).verdict is Verdict.DOES_NOT
    assert judge("more", interval(0.001, 0.004), near, near, margin=0.01, best=1.0).verdict is Verdict.HOLDS


def test_the_same_at_the_best_possible_value_holds_and_says_where():
    near, far, gap = interval(0.99, 1.0), interval(0.9, 0.96), interval(-0.01, 0.01)
    top = judge("same", gap, near, near, margin=0.02, best=1.0)
    assert top.verdict is Verdict.HOLDS
    assert "best possible" in top.reason
    for below in (
        judge("same", gap, near, far, margin=0.02, best=1.0),
        judge("same", gap, near, near, margin=0.02),
    ):
        assert below.verdict is Verdict.HOLDS
        assert "best possible" not in below.reason


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_decide_nothing(seeds):
    outcome = judge("more", interval(0.1, 0.2, seeds), FIRST, SECOND, margin=0.01)
    assert outcome.verdict is Verdict.CANNOT_TELL
    assert f"{seeds} seeds" in outcome.reason


def test_a_margin_of_nothing_is_refused():
    with pytest.raises(ValueError, match="margin is 0"):
        judge("same", interval(0, 1), FIRST, SECOND, margin=0)


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ("HOLDS HOLDS", "HOLDS"),
        ("HOLDS CANNOT_TELL", "CANNOT_TELL"),
        ("CANNOT_TELL DOES_NOT", "DOES_NOT"),
        ("HOLDS DOES_NOT", "DOES_NOT"),
    ],
)
def test_a_claim_holds_if_all_its_parts_do(verdicts, whole):
    parts = [Outcome(verdict=Verdict[name], reason="") for name in verdicts.split()]
    assert together(parts) is Verdict[whole]


def test_the_seeds_that_would_tell_are_the_first_whose_interval_does():
    values = (0.00, 0.01, 0.05)  # mean 0.02, spread 0.0265
    gap = over_seeds(values)
    assert judge("more", gap, FIRST, SECOND, margin=0.01).verdict is Verdict.CANNOT_TELL
    arms = over_seeds([0.6, 0.61, 0.65]), over_seeds([0.6, 0.6, 0.6])

    def half(seeds: int) -> float:
        return float(stdtrit(seeds - 1, 0.975)) * stdev(values) / seeds**0.5

    first = next(seeds for seeds in range(4, MOST_SEEDS) if half(seeds) < 0.02)
    assert seeds_to_tell("more", gap, *arms, margin=0.01) == first == 10
    # Twice as far apart needs fewer; nothing tells a difference of nothing from a small one.
    assert seeds_to_tell("more", over_seeds([2 * v for v in values]), *arms, margin=0.01) == first
    assert seeds_to_tell("more", over_seeds([0.03, 0.04, 0.08]), *arms, margin=0.01) == 4
    assert seeds_to_tell("same", over_seeds([0.008, 0.009, 0.013]), *arms, margin=0.01) is None
    assert seeds_to_tell("more", over_seeds([0.1]), *arms, margin=0.01) is None
