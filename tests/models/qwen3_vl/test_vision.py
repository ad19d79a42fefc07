"""The vision tower's first steps: grey levels become what the public processor makes of them on the host, and learned
positions are resampled to a frame's grid."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vcap_jax.models.qwen3_vl.config import VisionConfig
from vcap_jax.models.qwen3_vl.inputs import PixelScale
from vcap_jax.models.qwen3_vl.vision import (
    PatchEmbedding,
    interpolate_positions,
    normalise,
    patch_coordinates,
)

CONFIG = VisionConfig(patch_size=4)
OTHER = PixelScale(mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28))
SIDE, WIDTH, MERGE = 6, 8, 2
GRIDS = np.array([[4, 10], [6, 6], [2, 14]], np.int32)


def levels(depth: int) -> np.ndarray:
    """Every level in every channel: [16, 3 * depth * 16]."""
    rows = np.arange(16 * 16, dtype=np.uint8).reshape(16, 1, 1, 16)
    return np.broadcast_to(rows, (16, 3, depth, 16)).reshape(16, -1)


@pytest.mark.parametrize("scale", [PixelScale(), OTHER])
def test_every_level_of_every_channel(scale: PixelScale) -> None:
    ours = jax.jit(lambda x: normalise(x, scale, CONFIG, jnp.float32))(levels(2)).reshape(16, 3, 2, 16)
    for channel in range(3):
        expected = (levels(2).reshape(16, 3, 2, 16)[:, channel] / 255 - scale.mean[channel]) / scale.std[
            channel
        ]
        np.testing.assert_allclose(ours[:, channel], expected, rtol=0, atol=6e-7)


@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_still_is_what_fills_its_temporal_patch_with_itself(dtype: Any, param_dtype: Any) -> None:
    """The public processor repeats it; the embedding of once is the embedding of twice, whatever weights are kept in
    (a sum of frames rounded to bfloat16 moved float32 logits by 1e-3 of the largest)."""
    embed = PatchEmbedding(CONFIG, rngs=nnx.Rngs(0), param_dtype=param_dtype)
    embed.bias[...] = (jnp.arange(CONFIG.hidden_size) / 100).astype(param_dtype)
    once, twice = (normalise(jnp.asarray(levels(depth)), OTHER, CONFIG, dtype) for depth in (1, 2))
    assert once.dtype == dtype
    assert 2 * once.shape[-1] == twice.shape[-1] == CONFIG.patch_dim
    np.testing.assert_array_equal(
        jnp.tile(once.reshape(16, 3, 1, 16), (1, 1, 2, 1)).reshape(16, -1).astype(jnp.float32),
        twice.astype(jnp.float32),
    )
    tolerance = 1e-6 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(
        embed(once).astype(jnp.float32), embed(twice).astype(jnp.float32), rtol=tolerance, atol=tolerance
    )


def test_what_is_no_patch_of_grey_levels_is_refused() -> None:
    with pytest.raises(TypeError, match="float32: the vision tower takes grey levels"):
        normalise(jnp.zeros((4, CONFIG.patch_dim)), PixelScale(), CONFIG, jnp.float32)
    with pytest.raises(ValueError, match="patches of 60 numbers: the model takes 96, or 48"):
        normalise(jnp.zeros((4, 60), jnp.uint8), PixelScale(), CONFIG, jnp.float32)
    with pytest.raises(ValueError, match="3 channels"):
        normalise(jnp.zeros((4, 48), jnp.uint8), PixelScale(mean=(0.5,)), CONFIG, jnp.float32)


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
def test_positions_are_the_bilinear_ones_to_the_last_digits_of_float32(table: np.ndarray, dtype: str) -> None:
    for ours, theirs in zip(positions(table, dtype), by_numpy(table), strict=True):
        np.testing.assert_allclose(ours[: len(theirs)], theirs, rtol=0, atol=1e-6)


def test_a_bfloat16_table_is_resampled_in_float32_and_rounded_once(table: np.ndarray) -> None:
    whole, half = positions(table, "float32"), positions(table, "bfloat16")
    np.testing.assert_array_equal(half.astype(jnp.bfloat16), whole.astype(jnp.bfloat16))
    np.testing.assert_array_equal(half, whole)
