"""Formulas of agreement against cases worked out by hand and in print."""

from __future__ import annotations

import pytest

from vcap_jax.human_eval.formulas import (
    average_ranks,
    kendall_tau,
    kendall_w,
    krippendorff_alpha,
    mean_tau,
)

# Krippendorff 2011, section C: four observers, twelve units, values 1 to 5, missing ones as dots.
PRINTED = {
    "A": "1 2 3 3 2 1 4 1 2 . . .",
    "B": "1 2 3 3 2 2 4 1 2 5 . 3",
    "C": ". 3 3 3 2 3 4 2 2 5 1 .",
    "D": "1 2 3 3 2 4 4 1 2 5 1 .",
}


def printed_units():
    columns = {name: text.split() for name, text in PRINTED.items()}
    return [
        {name: int(values[unit]) for name, values in columns.items() if values[unit] != "."}
        for unit in range(12)
    ]


def test_alpha_is_what_krippendorff_prints_for_his_example():
    units = printed_units()
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(units, "ordinal", order=(1, 2, 3, 4, 5)) == pytest.approx(0.815, abs=5e-4)


def test_alpha_of_two_raters_by_hand():
    # Three units ab, ab, aa: coincidences aa 2, ab 2, ba 2; marginals a 4, b 2; observed 4, expected 16 / 5.
    units = [{"x": "a", "y": "b"}, {"x": "a", "y": "b"}, {"x": "a", "y": "a"}]
    assert krippendorff_alpha(units) == pytest.approx(1 - 4 / (16 / 5))


def test_alpha_is_one_where_all_agree_and_undefined_where_nothing_can_be_said():
    assert krippendorff_alpha([{"x": 1, "y": 1}, {"x": 2, "y": 2}]) == 1
    assert krippendorff_alpha([]) is None
    assert krippendorff_alpha([{"x": 1}, {"y": 2}]) is None
    assert krippendorff_alpha([{"x": 1, "y": 1}, {"x": 1, "y": 1}]) is None
    with pytest.raises(ValueError, match="order"):
        krippendorff_alpha([{"x": 1, "y": 9}], "ordinal", order=(1, 2))


def test_w_by_hand():
    same = {"a": 1, "b": 2, "c": 3}
    assert kendall_w([same, same, same]) == 1
    assert kendall_w([same, {"a": 3, "b": 2, "c": 1}]) == 0
    # Sums 4, 6, 8 of 123, 132, 213: spread 8, most 9 * 24: 96 / 216.
    others = [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "c": 2}, {"a": 2, "b": 1, "c": 3}]
    assert kendall_w(others) == pytest.approx(12 * 8 / (9 * 24))
    # With ties: 1, 2.5, 2.5 and 1, 2, 3: sums 2, 4.5, 5.5, mean 4, spread 6.5; most 4 * 24 - 2 * 6.
    assert kendall_w([{"a": 1, "b": 2.5, "c": 2.5}, same]) == pytest.approx(12 * 6.5 / (96 - 12))
    assert kendall_w([same]) is None
    assert kendall_w([{"a": 1.5, "b": 1.5}] * 2) is None
    with pytest.raises(ValueError, match="different things"):
        kendall_w([same, {"a": 1, "b": 2}])


def test_tau_by_hand():
    # Of six pairs of 1234 and 1324 one is turned: (5 - 1) / 6.
    first, second = dict(zip("abcd", (1, 2, 3, 4), strict=True)), dict(zip("abcd", (1, 3, 2, 4), strict=True))
    assert kendall_tau(first, second) == pytest.approx(4 / 6)
    assert kendall_tau(first, dict.fromkeys("abcd", 1)) is None
    assert mean_tau([first, first, second]) == pytest.approx((1 + 4 / 6 + 4 / 6) / 3)
    assert mean_tau([first]) is None


def test_equal_values_share_their_ranks():
    assert average_ranks({"a": 0.2, "b": 0.9, "c": 0.2, "d": 0.1}) == {"b": 1, "a": 2.5, "c": 2.5, "d": 4}
