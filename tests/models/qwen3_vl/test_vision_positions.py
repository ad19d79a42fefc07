"""The learned positions of the vision tower, resampled to a frame's grid."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.models.qwen3_vl.vision import interpolate_positions, patch_coordinates

SIDE, WIDTH, MERGE = 6, 8, 2
GRIDS = np.array([[4, 10], [6, 6], [2, 14]], np.int32)


def positions(table: np.ndarray, dtype: str) -> np.ndarray:
    """[3, 40, WIDTH] as the function returns it for a table of ``dtype``."""
    rows, columns = patch_coordinates(jnp.asarray(GRIDS), 40, MERGE)
    return np.asarray(interpolate_positions(jnp.asarray(table, dtype), rows, columns, jnp.asarray(GRIDS)))


def by_numpy(table: np.ndarray) -> list[np.ndarray]:
    """Of each frame [patches, WIDTH], in float64 and in the order of the public model: blocks of MERGE x MERGE."""
    grid = table.astype(np.float64).reshape(SIDE, SIDE, WIDTH)
    frames = []
    for height, width in GRIDS:
        whole = grid
        for axis, size in ((0, height), (1, width)):
            at = np.linspace(0, SIDE - 1, size)
            low = np.clip(np.floor(at).astype(int), 0, SIDE - 2)
            part = (at - low).reshape(-1, *[1] * (2 - axis))
            whole = whole.take(low, axis) * (1 - part) + whole.take(low + 1, axis) * part
        blocks = whole.reshape(height // MERGE, MERGE, width // MERGE, MERGE, WIDTH)
        frames.append(blocks.transpose(0, 2, 1, 3, 4).reshape(-1, WIDTH))
    return frames


@pytest.fixture
def table() -> np.ndarray:
    """Exact in bfloat16, so that both types resample the same numbers."""
    drawn = np.random.default_rng(0).standard_normal((SIDE**2, WIDTH), np.float32)
    return drawn.astype(jnp.bfloat16).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_are_the_bilinear_ones_to_the_last_digits_of_float32(table: np.ndarray, dtype: str) -> None:
    for ours, theirs in zip(positions(table, dtype), by_numpy(table), strict=True):
        np.testing.assert_allclose(ours[: len(theirs)], theirs, rtol=0, atol=1e-6)


def test_a_bfloat16_table_is_resampled_in_float32_and_rounded_once(table: np.ndarray) -> None:
    whole, half = positions(table, "float32"), positions(table, "bfloat16")
    np.testing.assert_array_equal(half.astype(jnp.bfloat16), whole.astype(jnp.bfloat16))
    np.testing.assert_array_equal(half, whole)
