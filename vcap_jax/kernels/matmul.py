"""Products of narrow numbers that are added up in float32."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

Array = jax.Array


def einsum_float32(equation: str, left: Array, right: Array) -> Array:
    """``jnp.einsum`` of two arrays, accumulated and returned in float32 whatever their type.

    XLA's CPU backend cannot run a bfloat16 product with a float32 result inside a loop. There the operands are
    widened first, which gives the same numbers: the product of two bfloat16 fits into float32.
    """
    product = partial(jnp.einsum, equation, preferred_element_type=jnp.float32)
    if left.dtype == right.dtype == jnp.float32:
        return product(left, right)

    def widened(left: Array, right: Array) -> Array:
        return product(left.astype(jnp.float32), right.astype(jnp.float32))

    return jax.lax.platform_dependent(left, right, cpu=widened, default=product)
