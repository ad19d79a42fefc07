"""Ratios, means and their intervals: against a plain bootstrap, SciPy's, and known coverage."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from vcap_jax.report.intervals import Value, mean, ratio, resampled
from vcap_jax.system.json_records import as_record


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios() -> None:
    estimate = ratio(np.array([1, 0]), np.array([1, 9]))
    assert estimate.value == pytest.approx(0.1)
    assert estimate.low == 0
    assert estimate.high == 1


def test_intervals_agree_with_a_plain_bootstrap() -> None:
    rng = np.random.default_rng(3)
    under = rng.integers(4, 15, 100)
    over = rng.binomial(under, 0.3)
    drawn = rng.integers(0, 100, (20_000, 100))
    low, high = np.quantile(over[drawn].sum(1) / under[drawn].sum(1), [0.025, 0.975])
    estimate = ratio(over, under)
    assert estimate.low == pytest.approx(low, abs=2e-3)
    assert estimate.high == pytest.approx(high, abs=2e-3)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        under = rng.integers(3, 10, 60)
        estimate = ratio(rng.binomial(under, 0.7), under, resamples=400)
        held += estimate.low <= 0.7 <= estimate.high
    assert 0.90 <= held / 200 <= 0.985


@pytest.mark.parametrize("value", [5 / 3, 2.2, 11 / 3])
def test_equal_values_have_no_interval_beside_them(value: float) -> None:
    for count in range(2, 12):
        found = mean(np.full(count, value), resamples=200)
        assert found.low == found.value == found.high


def test_a_value_that_no_draw_has_has_no_interval() -> None:
    found = resampled(lambda counts: np.where((counts > 0).all(axis=1), 1.0, math.nan), 20)
    assert (found.value, found.n) == (1, 20)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_interval_of_a_mean_agrees_with_scipy() -> None:
    values = np.random.default_rng(4).exponential(size=80)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    ours = mean(values)
    assert ours.value == pytest.approx(values.mean(), rel=1e-12)
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)
    assert ours.n == 80


def test_the_same_values_give_the_same_interval_and_another_seed_another() -> None:
    values = np.arange(20)
    assert mean(values) == mean(values)
    assert mean(values, seed=1) != mean(values)
    assert mean(values, level=0.5).high < mean(values).high


def test_of_no_samples_a_statistic_is_not_asked() -> None:
    def refuses(counts: np.ndarray) -> np.ndarray:
        raise AssertionError("there is nothing to compute it from")

    assert math.isnan(resampled(refuses, 0).value)


def test_nothing_measured_is_no_number() -> None:
    for value in (mean(np.array([])), ratio(np.zeros(3), np.zeros(3))):
        assert math.isnan(value.value)
        assert math.isnan(value.low)
    assert ratio(np.zeros(3), np.zeros(3)).n == 3


def test_a_value_is_read_back_as_it_was_written() -> None:
    value = mean(np.array([1.0, 2.0]))
    assert as_record(Value, value.row(), "a value") == value
    nothing = as_record(Value, mean(np.array([])).row(), "a value")
    assert math.isnan(nothing.value)
    assert mean(np.array([])).row()["value"] is None


def test_blocks_of_resamples_are_the_resamples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=50)
    at_once = mean(values, resamples=100)
    monkeypatch.setattr("vcap_jax.report.intervals.BLOCK", 50 * 7)
    assert mean(values, resamples=100).low == pytest.approx(at_once.low, rel=1e-12)
    assert mean(values, resamples=100).high == pytest.approx(at_once.high, rel=1e-12)


def test_many_samples_need_little_memory() -> None:
    tracemalloc.start()
    try:
        mean(np.zeros(100_000), resamples=120)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100e6  # 96 MB of counts all at once, and as much for their product
