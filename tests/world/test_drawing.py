"""Shapes, patterns and glyphs as coverage of pixels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from vcap_jax.world import drawing
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, DIRECTED, DIRECTIONS, MARKS, PATTERNS, SHAPES

TOWARDS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def polygon_area(points: np.ndarray) -> float:
    """Of [n, 2], by the shoelace formula."""
    x, y = points.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_covers_the_area_of_its_outline_about_its_centre(shape: str) -> None:
    outer, hole = drawing.shape_outline(shape)
    assert np.allclose(outer.min(axis=0), -outer.max(axis=0))
    mask = drawing.shape_mask(shape, (50.3, 41.8), 36.0, 0.0, 100)
    assert mask.dtype == np.float32
    assert mask.max() == 1
    area = 36.0**2 * (polygon_area(outer) - (polygon_area(hole) if len(hole) else 0))
    assert mask.sum() == pytest.approx(area, rel=0.04)
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    assert (columns[0] + columns[-1] + 1) / 2 == pytest.approx(50.3, abs=0.6)
    assert (rows[0] + rows[-1] + 1) / 2 == pytest.approx(41.8, abs=0.6)


@pytest.mark.parametrize(("shape", "direction"), list(itertools.product(DIRECTED, DIRECTIONS)))
def test_a_directed_shape_is_turned_to_where_it_points(shape: str, direction: str) -> None:
    mask = drawing.shape_mask(shape, (32.0, 32.0), 40.0, 0.0, 64, direction)
    quarter_turns = {"up": 0, "left": 1, "down": 2, "right": 3}[direction]
    upright = drawing.shape_mask(shape, (32.0, 32.0), 40.0, 0.0, 64)
    assert abs(mask - np.rot90(upright, quarter_turns)).mean() < 0.01
    y, x = np.mgrid[0:64, 0:64] - 31.5
    ahead = x * TOWARDS[direction][0] + y * TOWARDS[direction][1]
    across = abs(x * TOWARDS[direction][1] + y * TOWARDS[direction][0])
    if shape == "arrow":  # its head is its wider half
        widths = [float((mask * half * across).max()) for half in (ahead > 1, ahead < -1)]
        assert widths[0] > 2 * widths[1]
    else:  # a tip and horns are thin
        assert float((mask * ahead).sum()) < 0


def test_a_patch_reaches_over_the_border_and_a_mask_does_not() -> None:
    inside = drawing.shape_mask("circle", (60.0, 60.0), 30.0, 0.0, 120)
    corner = drawing.shape_mask("circle", (0.0, 60.0), 30.0, 0.0, 120)
    assert np.array_equal(corner[:, :30], inside[:, 60:90])


def test_tilt_turns_clockwise() -> None:
    assert drawing.turned(np.array([(0.0, -1.0)]), math.pi / 2)[0] == pytest.approx((1.0, 0.0))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_show_both_tones_and_differ(pattern: str) -> None:
    mask = drawing.pattern_mask(pattern, (24.0, 24.0), 0.05, 48)
    assert 0.2 < mask.mean() < 0.6
    assert mask.min() == 0
    assert mask.max() == 1
    for other in set(PATTERNS) - {pattern}:
        assert abs(drawing.pattern_mask(other, (24.0, 24.0), 0.05, 48) - mask).mean() > 0.25


def test_glyphs_stay_in_their_box_and_differ_boldly() -> None:
    masks = {mark: drawing.glyph_mask(mark, (16.0, 16.0), 32) for mark in MARKS}
    for mask in masks.values():
        rows, columns = np.nonzero(mask > 0.5)
        assert 12 <= np.ptp(rows) + 1 <= drawing.GLYPH[1]
        assert np.ptp(columns) + 1 <= drawing.GLYPH[0]
    for one, other in itertools.combinations(MARKS, 2):
        assert abs(masks[one] - masks[other]).sum() > 20, (one, other)


@pytest.mark.parametrize("shape", ["circle", "square", "triangle"])
@pytest.mark.parametrize("mark", MARKS)
def test_the_smallest_large_shape_holds_every_glyph(shape: str, mark: str) -> None:
    for direction in DIRECTIONS if shape in DIRECTED else (None,):
        for tilt in (-0.1, 0.0, 0.1):
            body = drawing.shape_mask(shape, (32.0, 32.0), 32.0, tilt, 64, direction)
            centre = drawing.glyph_centre(shape, (32.0, 32.0), 32.0, tilt, direction)
            glyph = drawing.glyph_mask(mark, centre, 64)
            assert (glyph * (1 - body)).sum() < 0.02 * glyph.sum(), direction


def test_tones_and_inks_stand_out() -> None:
    for colour, base in COLOURS.items():
        assert np.linalg.norm(drawing.ink(colour) - base) > 150
        for ground in BACKGROUNDS.values():
            tone, seen = drawing.second_tone(colour, ground)
            assert np.linalg.norm(tone - np.array(ground)) >= seen
            assert np.linalg.norm(tone - np.array(base)) >= seen / 2
    assert drawing.second_tone("blue", BACKGROUNDS["navy"])[0].mean() > np.mean(COLOURS["blue"])
    assert drawing.second_tone("blue", BACKGROUNDS["white"])[0].mean() < np.mean(COLOURS["blue"])


def test_unknown_names_and_wrong_directions_are_refused() -> None:
    with pytest.raises(ValueError, match="hexagon"):
        drawing.shape_mask("hexagon", (5.0, 5.0), 5.0, 0.0, 10)
    with pytest.raises(ValueError, match="circle has no direction"):
        drawing.shape_mask("circle", (5.0, 5.0), 5.0, 0.0, 10, "up")
    with pytest.raises(ValueError, match="zigzag"):
        drawing.pattern_mask("zigzag", (5.0, 5.0), 0.0, 10)
    with pytest.raises(ValueError, match="'Q'"):
        drawing.glyph_mask("Q", (5.0, 5.0), 10)
