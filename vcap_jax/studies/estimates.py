"""Means over seeds with intervals, for single arms and for differences of two.

An arm has been run with S seeds and captioned the same K held-out scenes with each. Two things vary: which scenes were
held out, and what a seed decides (references, data order, sampling). The first is covered by a bootstrap over scenes
in common for all seeds and both arms of a difference; the second by Student's t with S - 1 degrees of freedom on the
seeds' values, which for a difference are differences within a seed. Both are drawn independently and added. A bootstrap
that draws three seeds out of three would be far too sure of itself: it takes the spread of three values for the whole
spread and its tails for normal ones; t with 2 degrees of freedom is 4.3 standard errors wide on each side.

The seeds' values spread by the noise of their captions too, which the bootstrap over scenes has already. So where seeds
hardly differ otherwise, intervals are a little too wide: they cover the truth in 98 to 100 cases of a hundred, not 95.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from vcap_jax.report.summary import FactCounts

Measure = Literal["coverage", "false_claims", "f1"]

MEASURES: Mapping[Measure, str] = {
    "coverage": "facts covered, c / N",
    "false_claims": "false claims, (n - c) / n",
    "f1": "F1 of both, 2c / (n + N)",
}
"""What is measured on held-out captions, in words. Of false claims less is better."""

Ratio = tuple[np.ndarray, np.ndarray]
"""Numerators and denominators [K] over scenes; the ratio of their sums is one seed's value."""

_RESAMPLES = 4000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """value: the mean over seeds. low, high: its 95% interval, NaN where there is none. by_seed: one value each."""

    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]

    @property
    def seeds(self) -> int:
        """S."""
        return len(self.by_seed)


def shares(counts: FactCounts, measure: Measure) -> Ratio:
    """Numerators and denominators [K] of a measure, whose ratio of sums is its value."""
    facts, claims, correct = (
        np.asarray(x, np.float64) for x in (counts.facts, counts.claims, counts.correct)
    )
    if measure == "coverage":
        return correct, facts
    if measure == "false_claims":
        return claims - correct, claims
    return 2 * correct, claims + facts


def level(arm: Sequence[Ratio], *, share: bool = True) -> Interval:
    """The value of one arm, from its ratios by seed over the same scenes. Raises ValueError without seeds.

    share: the ratio is one, so that the interval ends at 0 and 1.
    """
    interval = _interval(_resampled(arm))
    if not share or math.isnan(interval.low):
        return interval
    return replace(interval, low=max(interval.low, 0.0), high=min(interval.high, 1.0))


def difference(first: Sequence[Ratio], second: Sequence[Ratio]) -> Interval:
    """first - second, both by the same seeds in the same order and over the same scenes. Raises ValueError."""
    if len(first) != len(second):
        raise ValueError(
            f"{len(first)} seeds of one arm and {len(second)} of the other: give those in common"
        )
    numbers = {len(over) for over, _ in (*first, *second)}
    if len(numbers) > 1:
        raise ValueError(f"the arms have captioned different numbers of scenes: {sorted(numbers)}")
    return _interval(_resampled(first) - _resampled(second))


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean of one number per seed, with Student's interval. Raises ValueError without seeds."""
    if not values:
        raise ValueError("no seed has a value")
    return _interval(np.asarray(values, np.float64)[:, None])


def with_seeds(interval: Interval, seeds: int) -> Interval:
    """The interval as it would be expected with so many seeds over the same scenes: what the seeds at hand have on
    average and how they spread is taken for the truth. Raises ValueError for fewer than two, at hand or asked for."""
    at_hand = interval.seeds
    if min(at_hand, seeds) < 2:
        raise ValueError(f"{at_hand} seeds at hand and {seeds} asked for: a spread needs two")
    spread = float(np.std(interval.by_seed, ddof=1))

    def student(count: int) -> float:
        return float(stdtrit(count - 1, 0.975)) * spread / math.sqrt(count)

    # Half of the width that scenes leave, whatever the seeds.
    scenes = max(((interval.high - interval.low) / 2) ** 2 - student(at_hand) ** 2, 0.0)
    half = math.sqrt(scenes + student(seeds) ** 2)
    value = interval.value
    return Interval(value=value, low=value - half, high=value + half, by_seed=(value,) * seeds)


def _resampled(arm: Sequence[Ratio]) -> np.ndarray:
    """[S, 1 + B]: the value of each seed, then over B draws of the scenes, the same draws for every arm."""
    if not arm:
        raise ValueError("an arm without seeds has no value")
    scenes = {len(over) for over, _ in arm}
    if len(scenes) > 1:
        raise ValueError(f"seeds have captioned different numbers of scenes: {sorted(scenes)}")
    weights = _weights(scenes.pop())
    rows = []
    for over, under in arm:
        below = weights @ under
        # A caption that claims nothing has no false claims.
        rows.append(np.divide(weights @ over, below, out=np.zeros_like(below), where=below > 0))
    return np.stack(rows)


@lru_cache(maxsize=16)
def _weights(scenes: int) -> np.ndarray:
    """[1 + B, K]: how often each scene counts, first once each, then in each draw. A report asks a thousand times."""
    drawn = np.random.default_rng(0).multinomial(scenes, np.full(scenes, 1 / scenes), size=_RESAMPLES)
    weights = np.concatenate([np.ones((1, scenes)), drawn])
    weights.setflags(write=False)
    return weights


@lru_cache(maxsize=64)
def _student(seeds: int) -> np.ndarray:
    """[10 B]: Student's quantiles with S - 1 degrees of freedom at even steps, in random order: less noise than random
    draws."""
    count = 10 * _RESAMPLES
    quantiles = np.random.default_rng(1).permutation(stdtrit(seeds - 1, (np.arange(count) + 0.5) / count))
    quantiles.setflags(write=False)
    return quantiles


def _interval(values: np.ndarray) -> Interval:
    by_seed = values[:, 0]
    seeds = len(by_seed)
    mean = float(by_seed.mean())
    own = tuple(map(float, by_seed))
    if seeds < 2:
        return Interval(value=mean, low=math.nan, high=math.nan, by_seed=own)
    error = float(by_seed.std(ddof=1)) / math.sqrt(seeds)
    scenes = values[:, 1:].mean(axis=0) if values.shape[1] > 1 else np.full(1, mean)
    student = _student(seeds)
    draws = np.resize(scenes, len(student)) + error * student
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(value=mean, low=float(low), high=float(high), by_seed=own)
