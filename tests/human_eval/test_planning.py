"""How large a study must be."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.human_eval.planning import Spread, spread_of


def test_one_value_of_each_item_gives_the_usual_variance():
    assert spread_of([[1.0], [2.0], [6.0]]) == Spread(variance=pytest.approx(7), items=3)


def test_variances_by_hand():
    # Items 0, 2 and 4, 6. Mean square 14, mean 3; the items' means 1 and 5 have the variance 8, their mean 4.
    found = spread_of([[0.0, 2.0], [4.0, 6.0], []])
    assert (found.variance, found.items) == (pytest.approx(14 - 9 + 4), 2)


def test_the_variance_of_drawn_values_is_found_again_however_many_an_item_has():
    rng = np.random.default_rng(0)
    values = [list(rng.normal(0, 0.3) + rng.normal(0, 0.2, size=1 + item % 3)) for item in range(20_000)]
    assert spread_of(values).variance == pytest.approx(0.13, rel=0.05)
    # On average it is right with three items as well.
    few = [spread_of(values[first : first + 3]).variance for first in range(0, 19_998, 3)]
    assert np.mean(few) == pytest.approx(0.13, rel=0.05)


def test_what_cannot_be_told_is_none():
    assert spread_of([]) is None
    assert spread_of([[1.0, 2.0], []]) is None


def test_the_number_of_items_gives_the_width_that_was_asked_for():
    spread = Spread(variance=0.1, items=9)
    items = spread.items_for(0.03)
    assert spread.half_width(items) <= 0.03 < spread.half_width(items - 1)
