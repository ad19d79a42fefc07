"""Scores of queries against keys, and the value of what is not seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.kernels.matmul import einsum_float32

Array = jax.Array

# Finite, so that a row with nothing to see (padding) gives numbers that are merely unused, not NaN.
MASKED = -1e30


def scores(equation: str, queries: Array, keys: Array) -> Array:
    """Scaled scores; the scale meets the float32 product and is not rounded into bfloat16 queries."""
    return einsum_float32(equation, queries, keys) * queries.shape[-1] ** -0.5


def group_heads(queries: Array, key_heads: int) -> Array:
    """Split the heads by the key head they read: [..., H, d] -> [..., K, H / K, d]."""
    *lead, heads, dim = queries.shape
    return queries.reshape(*lead, key_heads, heads // key_heads, dim)


def seen_lengths(lengths: Array | None, keys: Array) -> Array:
    """int32 [N]: how many keys are seen; None says all of them, keys being [N, S, K, d]."""
    return jnp.full(keys.shape[0], keys.shape[1], jnp.int32) if lengths is None else lengths.astype(jnp.int32)
