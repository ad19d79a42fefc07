"""Grey levels become on the device what the public processor makes of them on the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vcap_jax.models.qwen3_vl.config import VisionConfig
from vcap_jax.models.qwen3_vl.inputs import PixelScale
from vcap_jax.models.qwen3_vl.vision import PatchEmbedding, normalise

CONFIG = VisionConfig(patch_size=4)
OTHER = PixelScale(mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28))


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
