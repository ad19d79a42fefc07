"""Ranks of captioners, where one of them claims nothing."""

from __future__ import annotations

import pytest

from benchmarks.benchmark_ranks import ranks, table


def test_what_a_captioner_does_not_have_is_not_ranked() -> None:
    rows = {
        "silent": {"coverage": 0.0, "correct": None, "both": None, "words": 0.0, "good": 1.0, "flat": 5.0},
        "some": {"coverage": 20.0, "correct": 80.0, "both": 32.0, "words": 9.0, "good": 2.0, "flat": 5.0},
        "more": {"coverage": 40.0, "correct": 90.0, "both": 55.0, "words": 8.0, "good": 3.0, "flat": 5.0},
    }
    found = ranks(rows)
    assert found == {
        "good": {"coverage": 1.0, "words": pytest.approx(1 / 3)},  # two pairs of three are in order
        "flat": {"coverage": None, "words": None},
    }
    assert table(rows).splitlines()[2] == "| silent | 0.00 |  |  | 0.00 | 1.00 | 5.00 |"
    assert table(found).splitlines()[3] == "| flat |  |  |"
