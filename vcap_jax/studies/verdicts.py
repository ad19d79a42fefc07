"""From intervals to verdicts, by rules that are fixed before anything is measured.

Every test is about one difference and has a smallest difference that matters, ``margin``:

    more, less   holds if the interval of the difference lies on the stated side of 0, however small the difference,
                 and says so where a difference that matters is excluded; else does not hold if it excludes a
                 difference of ``margin`` or more on that side; otherwise nobody can tell.
    same         holds if the interval lies within +- ``margin``; does not if it lies outside; else nobody can tell.
    apart        as "more", and the intervals of the two arms themselves must not overlap.

Where both arms are within ``margin`` of the best possible value, "more" and "less" that do not hold cannot be told:
there is no room left to differ in. "Same" holds there, as both have got to the same place, and its reason says that it
was the best there is: arms that differ elsewhere would have been the same too. Fewer than three seeds decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from vcap_jax.studies.estimates import Interval, with_seeds

Kind = Literal["more", "less", "same", "apart"]
LEAST_SEEDS = 3
MOST_SEEDS = 50
"""As many as ``seeds_to_tell`` looks at."""
POINT = 0.01
"""A difference of one point is the smallest that matters, unless a test says otherwise."""


class Verdict(StrEnum):
    """What a measurement says about a claim."""

    HOLDS = "holds"
    DOES_NOT = "does not"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Outcome:
    """A verdict with its reason in words."""

    verdict: Verdict
    reason: str


def judge(
    kind: Kind,
    difference: Interval,
    first: Interval,
    second: Interval,
    *,
    margin: float,
    best: float | None = None,
) -> Outcome:
    """The outcome of one test: is ``first`` more than, less than, the same as, or apart above ``second``?

    difference: first - second. margin: above 0. best: the best possible value, if there is one.
    """
    if not margin > 0:
        raise ValueError(f"margin is {margin}: give a smallest difference that matters, above 0")
    if difference.seeds < LEAST_SEEDS or math.isnan(difference.low):
        return Outcome(Verdict.CANNOT_TELL, f"{difference.seeds} seeds are done, {LEAST_SEEDS} are needed")
    low, high = difference.low, difference.high
    if kind == "same":
        if -margin <= low and high <= margin:
            reason = "the interval lies within the margin"
            if best is not None and all(abs(best - arm.value) <= POINT for arm in (first, second)):
                reason += "; both are at the best possible value, where what differs elsewhere does not show"
            return Outcome(Verdict.HOLDS, reason)
        if low > margin or high < -margin:
            return Outcome(Verdict.DOES_NOT, "the interval lies outside the margin")
        return Outcome(Verdict.CANNOT_TELL, "the interval crosses the margin")
    if kind == "less":
        low, high = -high, -low
    if low > 0:
        if kind == "apart" and not first.low > second.high:
            return Outcome(
                Verdict.CANNOT_TELL, "the difference is above 0, but the intervals of the two overlap"
            )
        reason = "the interval of the difference excludes 0"
        if high < margin:
            reason += ", and a difference that matters as well"
        return Outcome(Verdict.HOLDS, reason)
    if best is not None and all(abs(best - arm.value) <= margin for arm in (first, second)):
        return Outcome(Verdict.CANNOT_TELL, "both are at the best possible value: no room to differ in")
    if high < margin:
        other_way = "the difference goes the other way"
        return Outcome(Verdict.DOES_NOT, other_way if high < 0 else "a difference that matters is excluded")
    return Outcome(Verdict.CANNOT_TELL, "the interval of the difference contains 0")


def seeds_to_tell(
    kind: Kind,
    difference: Interval,
    first: Interval,
    second: Interval,
    *,
    margin: float,
    best: float | None = None,
) -> int | None:
    """How many seeds in all would settle a test that nobody can tell, if means and spreads stay as they are; None if
    ``MOST_SEEDS`` would not, or if there are too few to know a spread. Arguments as ``judge`` takes them."""
    intervals = (difference, first, second)
    if min(one.seeds for one in intervals) < 2:
        return None
    for seeds in range(max(difference.seeds + 1, LEAST_SEEDS), MOST_SEEDS + 1):
        gap, one, other = (with_seeds(interval, seeds) for interval in intervals)
        if judge(kind, gap, one, other, margin=margin, best=best).verdict is not Verdict.CANNOT_TELL:
            return seeds
    return None


def together(outcomes: Sequence[Outcome]) -> Verdict:
    """Of a claim of several parts: it holds if all do, and does not as soon as one does not."""
    verdicts = {outcome.verdict for outcome in outcomes}
    if Verdict.DOES_NOT in verdicts:
        return Verdict.DOES_NOT
    return Verdict.HOLDS if verdicts == {Verdict.HOLDS} else Verdict.CANNOT_TELL
