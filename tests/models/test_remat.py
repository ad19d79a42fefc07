"""Rematerialisation policies: other memory, the same gradient."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.tiny_policy import CONFIG, tiny_prompts
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL


@functools.cache
def gradient(remat: str) -> tuple[np.ndarray, str]:
    """The gradient under this policy, and the program that computes it."""
    model = Qwen3VL(Qwen3VLConfig.from_dict(CONFIG), rngs=nnx.Rngs(0), dtype=jnp.float32, remat=remat)
    graphdef, params = nnx.split(model)
    prompt = dataclasses.replace(tiny_prompts(2), vision=None)
    captions = np.full((2, 2, 4), 11, np.int32)

    def loss(params: nnx.State) -> jax.Array:
        return jnp.square(nnx.merge(graphdef, params).caption_hidden(prompt, None, captions)).sum()

    traced = jax.jit(jax.grad(loss)).trace(params)
    leaves = jax.tree.leaves(traced.lower().compile()(params))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]), str(traced.jaxpr)


def test_hidden_states_offloaded_to_the_host_come_back_as_they_were() -> None:
    kept, plain = gradient("layer")
    offloaded, program = gradient("offload")
    np.testing.assert_array_equal(offloaded, kept)
    assert np.abs(kept).max() > 0
    assert "layer_input" in program
    assert "layer_input" not in plain
    # Out in the forward pass, back in the backward pass.
    assert program.count("device_put") >= 2


@pytest.mark.parametrize("remat", ["attention", "dots", "none"])
def test_other_policies_agree_to_rounding(remat: str) -> None:
    np.testing.assert_allclose(gradient(remat)[0], gradient("layer")[0], rtol=2e-4, atol=1e-5)
