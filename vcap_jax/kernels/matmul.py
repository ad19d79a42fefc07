"""Products of narrow numbers that are added up in float32."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

Array = jax.Array


def einsum_float32(equation: str, left: Array, right: Array) -> Array:
    """``jnp.einsum`` of two arrays, accumulated and returned in float32 whatever their type.

    The gradient of a product of narrow operands is rounded to their type before it is multiplied with them, as their
    own gradients are in the end. These are two of the three products of a step; in float32 they run at half the speed
    of a GPU or less.

    XLA's CPU backend cannot run a bfloat16 product with a float32 result inside a loop. There the operands are
    widened first, which gives the same numbers: the product of two bfloat16 fits into float32.
    """
    if left.dtype == right.dtype == jnp.float32:
        return _product(equation, left, right)
    return _of_narrow(equation, left, right)


def _product(equation: str, left: Array, right: Array) -> Array:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_narrow(equation: str, left: Array, right: Array) -> Array:
    def widened(left: Array, right: Array) -> Array:
        return _product(equation, left.astype(jnp.float32), right.astype(jnp.float32))

    return jax.lax.platform_dependent(left, right, cpu=widened, default=partial(_product, equation))


def _forward(equation: str, left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    return _of_narrow(equation, left, right), (left, right)


def _backward(equation: str, operands: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    left, right = operands
    dtype = jnp.promote_types(left.dtype, right.dtype)
    product = partial(jnp.einsum, equation, preferred_element_type=dtype)
    (to_left,) = jax.linear_transpose(lambda x: product(x, right), left)(gradient.astype(dtype))
    (to_right,) = jax.linear_transpose(lambda x: product(left, x), right)(gradient.astype(dtype))
    return to_left, to_right


_of_narrow.defvjp(_forward, _backward)
