"""Scores of queries against keys, and the value of what is not seen."""

from __future__ import annotations

import jax

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
