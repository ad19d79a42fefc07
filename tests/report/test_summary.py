"""Shares, their intervals and the comparison: against a plain bootstrap and known coverage."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from vcap_jax.report.summary import (
    FactCounts,
    comparison,
    comparison_table,
    fact_shares,
    ratio,
    write_summary,
)


def counts(rng: np.random.Generator, covered: float, false: float, scenes: int = 256) -> FactCounts:
    facts = rng.integers(5, 14, scenes)
    correct = rng.binomial(facts, covered)
    return FactCounts(facts, correct + rng.binomial(facts, false), correct, np.ones_like(facts))


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


def test_the_same_counts_give_the_same_interval() -> None:
    shares = counts(np.random.default_rng(1), 0.5, 0.1)
    assert fact_shares(shares) == fact_shares(shares)


def test_the_comparison_has_the_promised_keys(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    summary = comparison(
        counts(rng, 0.5, 0.1), counts(rng, 0.5, 0.1), counts(rng, 0.95, 0.01), 12.5, steps=140
    )
    write_summary(tmp_path / "summary.json", summary)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert read.keys() == {"references", "start", "trained", "seconds", "steps"}
    assert read["seconds"] == 12.5
    for row in ("references", "start", "trained"):
        for share in ("coverage", "hallucination"):
            low, high = read[row][f"{share}_interval"]
            assert low < read[row][share] < high
    assert read["trained"]["coverage_interval"][0] > read["references"]["coverage_interval"][1]
    assert len(comparison_table(read).splitlines()) == 4


def test_claims_are_counted_per_caption_however_many_a_scene_has() -> None:
    facts, claims, correct = np.array([5, 9]), np.array([4, 6]), np.array([3, 6])
    once = fact_shares(FactCounts(facts, claims, correct, np.array([1, 1])))
    often = fact_shares(FactCounts(8 * facts, 8 * claims, 8 * correct, np.array([8, 8])))
    assert once == often
    assert once["claims_per_caption"] == 5
    assert once["scenes"] == 2


def test_silence_has_no_share_of_false_claims(tmp_path: Path) -> None:
    none = np.zeros(3, int)
    shares = fact_shares(FactCounts(np.array([4, 4, 4]), none, none, none + 1))
    assert shares["coverage"] == 0
    assert math.isnan(shares["hallucination"])
    summary = {"references": shares, "start": shares, "trained": shares}
    write_summary(tmp_path / "summary.json", summary)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert read["start"]["hallucination"] is None
    assert "nothing claimed" in comparison_table(read)
    assert "nothing claimed" in comparison_table(summary)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="more correct claims"):
        FactCounts(np.array([2]), np.array([3]), np.array([3]), np.array([1]))
    with pytest.raises(ValueError, match="of one length"):
        FactCounts(np.array([2]), np.array([3, 1]), np.array([1]), np.array([1]))
