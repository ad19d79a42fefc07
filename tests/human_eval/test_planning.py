"""How large a study must be."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.human_eval.planning import Spread, spread_of


def test_variances_by_hand():
    # Items 0, 2 and 4, 6: within 2 and 2; means 1 and 5, between the squares 16 and of two values each.
    found = spread_of({"a": [0.0, 2.0], "b": [4.0, 6.0]})
    assert found.within == pytest.approx(2)
    assert found.between == pytest.approx((16 - 2) / 2)


def test_variances_of_drawn_values_are_found_again():
    rng = np.random.default_rng(0)
    values = {}
    for item in range(4000):
        centre = rng.normal(0, 0.3)
        values[str(item)] = list(centre + rng.normal(0, 0.2, size=1 + item % 3))
    found = spread_of(values)
    assert found.between == pytest.approx(0.09, rel=0.06)
    assert found.within == pytest.approx(0.04, rel=0.06)


def test_what_cannot_be_told_is_none():
    assert spread_of({}) is None
    assert spread_of({"a": [1.0, 2.0]}) is None
    assert spread_of({"a": [1.0], "b": [2.0]}) is None


def test_the_number_of_items_gives_the_width_that_was_asked_for():
    spread = Spread(between=0.05, within=0.1)
    for people in (1, 2, 5):
        items = spread.items_for(0.03, people)
        assert spread.half_width(items, people) <= 0.03 < spread.half_width(items - 1, people)
    assert spread.items_for(0.03, 2) < spread.items_for(0.03, 1)
