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
from vcap_jax.kernels.attention import Chunked
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL


@functools.cache
def gradient(remat: str) -> tuple[np.ndarray, str]:
    """The gradient under this policy, and the program that computes it."""
    # A kernel with a backward pass of its own: what XLA differentiates has no output to keep.
    kernel = Chunked(queries=8, scores=160, diagonal=8, whole=0)
    config = Qwen3VLConfig.from_dict(CONFIG)
    model = Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.float32, remat=remat, kernel=kernel)
    graphdef, params = nnx.split(model)
    prompt = dataclasses.replace(tiny_prompts(2), vision=None)
    captions = np.full((2, 2, 4), 11, np.int32)

    def loss(params: nnx.State) -> jax.Array:
        return jnp.square(nnx.merge(graphdef, params).caption_hidden(prompt, None, captions)).sum()

    traced = jax.jit(jax.grad(loss)).trace(params)
    leaves = jax.tree.leaves(traced.lower().compile()(params))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]), str(traced.jaxpr)


@pytest.mark.parametrize(
    ("policy", "same", "waiting"),
    [
        pytest.param("offload", "layer", 1, marks=pytest.mark.slow),
        pytest.param("offload_attention", "attention", 2, marks=pytest.mark.slow),
        pytest.param("offload_mlp", "mlp", 2, marks=pytest.mark.slow),
    ],
)
def test_what_is_offloaded_to_the_host_comes_back_as_it_was(policy: str, same: str, waiting: int) -> None:
    kept, plain = gradient(same)
    offloaded, program = gradient(policy)
    np.testing.assert_array_equal(offloaded, kept)
    assert np.abs(kept).max() > 0
    assert "layer_input" in program
    assert "layer_input" not in plain
    # Out in the forward pass, back in the backward pass.
    assert program.count("device_put") >= 2 * waiting


@pytest.mark.slow
def test_less_is_computed_a_second_time_from_policy_to_policy() -> None:
    products = [
        gradient(name)[1].count("dot_general") for name in ("layer", "attention", "mlp", "dots_attention")
    ]
    assert products == sorted(products, reverse=True)
    assert len(set(products)) == len(products)


@pytest.mark.parametrize(
    "remat", ["attention", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlp", "dots", "none"))]
)
def test_other_policies_agree_to_rounding(remat: str) -> None:
    expected, _ = gradient("layer")
    np.testing.assert_allclose(gradient(remat)[0], expected, rtol=2e-4, atol=2e-6 * np.abs(expected).max())
