"""Shares, their intervals and the comparison: against a plain bootstrap and known coverage."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from vcap_jax.report.summary import (
    FactCounts,
    FactRow,
    InventionCounts,
    fact_shares,
    shares_table,
    write_summary,
)
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import JsonError


def counts(rng: np.random.Generator, covered: float, false: float, scenes: int = 256) -> InventionCounts:
    facts = rng.integers(5, 14, scenes)
    correct = rng.binomial(facts, covered)
    claims = correct + rng.binomial(facts, false)
    return InventionCounts(facts, claims, correct, np.ones_like(facts), np.zeros_like(facts))


def test_the_same_counts_give_the_same_interval() -> None:
    shares = counts(np.random.default_rng(1), 0.5, 0.1)
    assert fact_shares(shares) == fact_shares(shares)


def test_a_row_has_the_promised_keys(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = {
        "references": fact_shares(counts(rng, 0.5, 0.1)),
        "trained": fact_shares(counts(rng, 0.95, 0.01)),
    }
    write_summary(tmp_path / "summary.json", rows)
    read = json.loads((tmp_path / "summary.json").read_text())
    for row in read.values():
        assert row["scenes"] == 256
        for share in ("coverage", "hallucination"):
            low, high = row[f"{share}_interval"]
            assert low < row[share] < high
    assert read["trained"]["coverage_interval"][0] > read["references"]["coverage_interval"][1]
    assert len(shares_table(read).splitlines()) == 3


def test_inventions_are_counted_and_have_their_column() -> None:
    some = np.array([4])
    counted = fact_shares(InventionCounts(some, some, some - 2, some, some - 3))
    assert counted["invented_share"] == 0.25
    table = shares_table({"e2": counted}).splitlines()
    assert table[0].endswith("of objects not there")
    assert table[1].split()[-4] == "25.0%"
    with pytest.raises(ValueError, match="inventions"):
        InventionCounts(some, some, some, some, np.array([0, 0]))


def test_claims_are_counted_per_caption_however_many_a_scene_has() -> None:
    facts, claims, correct = np.array([5, 9]), np.array([4, 6]), np.array([3, 6])
    once = fact_shares(InventionCounts(facts, claims, correct, np.array([1, 1]), claims - correct))
    eight = [8 * each for each in (facts, claims, correct, np.array([1, 1]), claims - correct)]
    often = fact_shares(InventionCounts(*eight))
    assert once == often
    assert once["claims_per_caption"] == 5
    assert once["scenes"] == 2


def test_silence_has_no_share_of_false_claims(tmp_path: Path) -> None:
    none = np.zeros(3, int)
    shares = fact_shares(InventionCounts(np.array([4, 4, 4]), none, none, none + 1, none))
    assert shares["coverage"] == 0
    assert math.isnan(shares["hallucination"])
    summary = {"references": shares, "start": shares, "trained": shares}
    write_summary(tmp_path / "summary.json", summary)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert read["start"]["hallucination"] is None
    assert "nothing claimed" in shares_table(read)
    assert "nothing claimed" in shares_table(summary)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="more correct claims"):
        FactCounts(np.array([2]), np.array([3]), np.array([3]), np.array([1]))
    with pytest.raises(ValueError, match="of one length"):
        FactCounts(np.array([2]), np.array([3, 1]), np.array([1]), np.array([1]))


def test_a_row_read_from_a_summary_is_the_row_that_was_written(tmp_path: Path) -> None:
    nothing = np.zeros(3, int)
    rows = {
        "measured": fact_shares(counts(np.random.default_rng(0), 0.5, 0.1)),
        "silent": fact_shares(InventionCounts(nothing + 4, nothing, nothing, nothing + 1, nothing)),
    }
    write_summary(tmp_path / "summary.json", rows)
    read = {
        name: as_record(FactRow, row, name)
        for name, row in json.loads((tmp_path / "summary.json").read_text()).items()
    }
    assert read["measured"] == rows["measured"]
    assert read["silent"]["hallucination"] is None
    assert shares_table(read) == shares_table(rows)
    with pytest.raises(JsonError, match="measured: invented_share: field required"):
        as_record(FactRow, dict(list(rows["measured"].items())[:6]), "measured")
    with pytest.raises(JsonError, match="measured: coverage"):
        as_record(FactRow, {**rows["measured"], "coverage": "much"}, "measured")
