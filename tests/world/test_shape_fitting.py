"""Outlines fitted to what is seen of them."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.drawing import shape_mask
from vcap_jax.world.shape_fitting import KINDS, Fit, fit_shape, looked_at

PLAIN = np.ones((128, 128), np.float32)


def fitted(mask: np.ndarray, price: np.ndarray, centre: tuple[int, int], reach: int) -> Fit:
    """``fit_shape`` with what it takes of a picture."""
    first = [128 + coordinate - looked_at(reach) // 2 for coordinate in centre]
    column, row = (slice(start, start + looked_at(reach)) for start in first)
    seen, prices = np.pad(mask, 128)[row, column], np.pad(price, 128, constant_values=1)[row, column]
    return fit_shape(seen, prices, centre, reach, thorough=reach > 2)


@pytest.mark.parametrize(("shape", "direction"), KINDS)
@pytest.mark.parametrize("extent", [17.0, 20.6, 32.3, 37.8])
def test_a_whole_shape_is_told_with_its_place_and_extent(
    shape: str, direction: str | None, extent: float
) -> None:
    mask = shape_mask(shape, (60.4, 71.7), extent, 0.08, 128, direction)
    fit = fitted(mask, PLAIN, (61, 71), 2)
    assert (fit.shape, fit.direction) == (shape, direction)
    assert fit.extent == pytest.approx(extent, abs=1.2)
    assert fit.centre == pytest.approx((60.4, 71.7), abs=0.9)
    assert fit.cost < 0.12 * mask.sum()
    assert fit.area == pytest.approx(mask.sum(), rel=0.15)


@pytest.mark.parametrize(("shape", "direction"), KINDS)
def test_a_shape_goes_on_behind_what_hides_it(shape: str, direction: str | None) -> None:
    mask = shape_mask(shape, (64.0, 64.0), 35.0, 0.0, 128, direction)
    hidden = np.zeros_like(mask)
    hidden[:, int(np.searchsorted(mask.sum(axis=0).cumsum(), 0.78 * mask.sum())) :] = 1
    seen = mask * (1 - hidden)
    assert 0.7 < seen.sum() / mask.sum() < 0.79
    columns = np.flatnonzero((seen > 0.5).any(axis=0))
    middle = (int(columns.mean()), 64)
    fit = fitted(seen, np.where(hidden > 0, np.float32(0.12), PLAIN), middle, 10)
    assert (fit.shape, fit.direction) == (shape, direction)
    assert fit.centre == pytest.approx((64.0, 64.0), abs=2.1)


def test_a_shape_at_the_border_of_the_picture_is_cut_off() -> None:
    mask = shape_mask("square", (4.0, 64.0), 34.0, 0.0, 128)
    assert fitted(mask, PLAIN, (4, 64), 2).shape in {"square", "triangle", "arrow", "crescent", "circle"}


def test_what_is_no_shape_costs_much() -> None:
    noise = np.random.default_rng(0).random((128, 128)).astype(np.float32)
    mask = np.where(noise > 0.5, np.float32(1), np.float32(0))
    mask[:40] = mask[90:] = mask[:, :40] = mask[:, 90:] = 0
    assert fitted(mask, PLAIN, (64, 64), 2).cost > 0.3 * mask.sum()
