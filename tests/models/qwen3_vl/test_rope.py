"""Rotary positions: their defining properties. Equality with the public model is in test_parity."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.models.qwen3_vl import rope


def test_published_sections_are_dealt_out_in_turn() -> None:
    axes = rope.mrope_axes(64, (24, 20, 20))
    assert np.bincount(axes).tolist() == [24, 20, 20]
    np.testing.assert_array_equal(axes[:60], np.tile([0, 1, 2], 20))
    np.testing.assert_array_equal(axes[60:], 0)


@pytest.mark.parametrize("section", [(2, 1, 1), (6, 3, 3), (0, 4, 2), (8, 0, 0)])
def test_each_axis_gets_its_section(section: tuple[int, int, int]) -> None:
    axes = rope.mrope_axes(12, section)
    assert np.sum(axes == 1) == section[1]
    assert np.sum(axes == 2) == section[2]


def test_equal_axes_are_plain_text_positions() -> None:
    positions = np.array([[3, 5, 900], [0, 70_000, 1]], np.int32)
    repeated = np.repeat(positions[:, None], 3, axis=1)
    for ours, plain in zip(
        rope.mrope(repeated, 16, 5e6, (4, 2, 2)), rope.text_rope(positions, 16, 5e6), strict=True
    ):
        np.testing.assert_array_equal(ours, plain)


def test_an_axis_moves_only_its_own_frequencies() -> None:
    positions = np.zeros((1, 3, 1), np.int32)
    moved = positions.copy()
    moved[0, 1] = 7
    before, after = (np.asarray(rope.mrope(p, 16, 1e4, (4, 2, 2))[1])[0, 0] for p in (positions, moved))
    np.testing.assert_array_equal(
        np.flatnonzero(before != after), np.flatnonzero(rope.mrope_axes(8, (4, 2, 2)) == 1)
    )


def test_rotation_keeps_norms_and_scores_depend_on_distance() -> None:
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 1, 2, 8)).astype(np.float32)

    def score(at: int, other: int) -> np.ndarray:
        positions = np.array([[at, other]], np.int32)
        cos, sin = rope.text_rope(positions, 8, 1e4)
        rotated_query = np.asarray(rope.apply_rope(query, cos[:, :1], sin[:, :1]))
        rotated_key = np.asarray(rope.apply_rope(key, cos[:, 1:], sin[:, 1:]))
        np.testing.assert_allclose(np.linalg.norm(rotated_query), np.linalg.norm(query), rtol=1e-6)
        return (rotated_query * rotated_key).sum(-1)

    np.testing.assert_allclose(score(5, 2), score(105, 102), rtol=2e-4, atol=1e-5)
    assert np.abs(score(5, 2) - score(5, 4)).max() > 1e-3


def test_vision_rows_turn_the_first_half_and_columns_the_second() -> None:
    zero, five = np.zeros((1, 1), np.int32), np.full((1, 1), 5, np.int32)
    by_row = np.asarray(rope.vision_rope(five, zero, 16, 1e4)[1])[0, 0]
    by_column = np.asarray(rope.vision_rope(zero, five, 16, 1e4)[1])[0, 0]
    assert np.all(by_row[:4] != 0)
    assert np.all(by_row[4:] == 0)
    np.testing.assert_array_equal(by_column, np.roll(by_row, 4))


def test_angles_stay_float32_for_low_precision_inputs() -> None:
    x = np.ones((1, 1, 1, 8), np.float32).astype("bfloat16")
    cos, sin = rope.text_rope(np.array([[257]], np.int32), 8, 1e4)
    assert cos.dtype == sin.dtype == np.float32
    assert rope.apply_rope(x, cos, sin).dtype == x.dtype
