"""Grey levels become on the device what the public processor makes of them on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.qwen3_vl.config import VisionConfig
from vcap_jax.qwen3_vl.inputs import PixelScale
from vcap_jax.qwen3_vl.vision import normalise

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


def test_a_still_fills_its_temporal_patch_with_itself() -> None:
    once, twice = (normalise(jnp.asarray(levels(depth)), OTHER, CONFIG, jnp.bfloat16) for depth in (1, 2))
    assert once.dtype == jnp.bfloat16
    np.testing.assert_array_equal(once.astype(jnp.float32), twice.astype(jnp.float32))


def test_what_is_no_patch_of_grey_levels_is_refused() -> None:
    with pytest.raises(TypeError, match="float32: the vision tower takes grey levels"):
        normalise(jnp.zeros((4, CONFIG.patch_dim)), PixelScale(), CONFIG, jnp.float32)
    with pytest.raises(ValueError, match="patches of 60 numbers: the model takes 96, or 48"):
        normalise(jnp.zeros((4, 60), jnp.uint8), PixelScale(), CONFIG, jnp.float32)
    with pytest.raises(ValueError, match="3 channels"):
        normalise(jnp.zeros((4, 48), jnp.uint8), PixelScale(mean=(0.5,)), CONFIG, jnp.float32)
