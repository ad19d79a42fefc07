"""Values with intervals: ratios and means over samples, by a seeded percentile bootstrap.

What is drawn again is the sample, never a claim, a question or a caption: those of one sample are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import pydantic

from vcap_jax.system.json_values import JsonDict, JsonValue

Measured = Annotated[float, pydantic.BeforeValidator(lambda part: math.nan if part is None else part)]
"""A number, NaN where nothing could be measured, which JSON holds as null."""
BLOCK = 4_000_000
"""Counts that are held at once, 8 bytes each."""


def null_for_nan(values: Mapping[str, JsonValue]) -> JsonDict:
    """Numbers by name as JSON holds them, where ``Measured`` reads them back."""
    return {
        name: None if isinstance(part, float) and math.isnan(part) else part for name, part in values.items()
    }


@dataclass(frozen=True, kw_only=True)
class Value:
    """A measured value and its interval.

    value, low, high: NaN where nothing could be measured; low and high also where no draw of the samples has a value.
    n: samples that it is over, or pictures and videos where several samples are of one. method: how the interval was
    found, in words.
    """

    value: Measured
    low: Measured
    high: Measured
    n: int
    method: str

    def row(self) -> JsonDict:
        """As JSON holds it, and ``json_records`` reads it: null for NaN."""
        return null_for_nan(asdict(self))

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "nothing measured"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def ratio(
    numerators: np.ndarray,
    denominators: np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Value:
    """The ratio of the sums of two [S] arrays, with a percentile bootstrap interval over the S samples.

    NaN where there are no samples or the denominators' sum is 0. The same arguments give the same interval.
    """
    over, under = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)

    def of(counts: np.ndarray) -> np.ndarray:
        sums = counts @ under
        return np.divide(counts @ over, sums, out=np.full(len(sums), math.nan), where=sums > 0)

    return resampled(of, over.size, level=level, resamples=resamples, seed=seed)


def mean(values: np.ndarray, *, level: float = 0.95, resamples: int = 4000, seed: int = 0) -> Value:
    """The mean of an array [S] with its interval; see ``ratio``, whose denominators are 1 here."""
    return ratio(values, np.ones(np.shape(values)), level=level, resamples=resamples, seed=seed)


def resampled(
    statistic: Callable[[np.ndarray], np.ndarray],
    samples: int,
    *,
    level: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Value:
    """Any statistic of samples, with a percentile bootstrap interval over them.

    statistic: takes how often each sample is drawn, [R, S], and gives R values; NaN where a draw has none, and such a
    draw enters no interval. samples: S. The draws are those of ``ratio``, so that a statistic of the same samples with
    the same seed can be compared draw by draw. Source: Efron and Tibshirani, An Introduction to the Bootstrap,
    chapter 13.
    """
    if samples == 0:
        return _nothing(0, _method(level, resamples))
    return resampled_together(
        lambda counts: {"": statistic(counts)}, samples, level=level, resamples=resamples, seed=seed
    )[""]


def resampled_together(
    statistics: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    samples: int,
    *,
    level: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> dict[str, Value]:
    """``resampled`` of several statistics of the same samples, by name: each has the value and the interval that it has
    alone, and the draws are made once. Without samples ``statistics`` must name them all the same."""
    method = _method(level, resamples)
    whole = {name: float(of[0]) for name, of in statistics(np.ones((1, samples), np.int64)).items()}
    measured = [name for name, value in whole.items() if not math.isnan(value)]
    found = dict.fromkeys(whole, _nothing(samples, method))
    if samples == 0 or not measured:
        return found
    # How often each sample is drawn is all a resample says, so S counts stand for S drawn samples. They are drawn in
    # blocks, which gives the same draws as all at once: those of 100,000 samples would take 3 GB.
    generator, chances = np.random.default_rng(seed), np.full(samples, 1 / samples)
    block = max(1, BLOCK // samples)
    drawn = [
        statistics(generator.multinomial(samples, chances, size=min(block, resamples - first)))
        for first in range(0, resamples, block)
    ]
    for name in measured:
        values = np.concatenate([of[name] for of in drawn])
        values = values[~np.isnan(values)]
        if not values.size:  # so few samples have what it needs that no draw has it
            found[name] = Value(value=whole[name], low=math.nan, high=math.nan, n=samples, method=method)
            continue
        # Sums of the same numbers in another order differ in their last bits: where all draws are the value, so are
        # both ends.
        low, high = (
            whole[name] if math.isclose(end, whole[name], rel_tol=1e-12) else float(end)
            for end in np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        )
        found[name] = Value(value=whole[name], low=low, high=high, n=samples, method=method)
    return found


def _method(level: float, resamples: int) -> str:
    return f"percentile bootstrap over samples, {level:.0%}, {resamples} resamples"


def _nothing(samples: int, method: str) -> Value:
    return Value(value=math.nan, low=math.nan, high=math.nan, n=samples, method=method)
