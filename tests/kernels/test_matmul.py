"""Products in float32 of narrow operands, also where XLA's CPU backend has none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.kernels.attention import Cached, Seen, decode
from vcap_jax.kernels.matmul import einsum_float32


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_sums_are_float32(dtype) -> None:
    left, right = (jax.random.normal(jax.random.key(k), (3, 4, 300)).astype(dtype) for k in range(2))
    exact = np.einsum("bik,bjk->bij", np.asarray(left, np.float64), np.asarray(right, np.float64))
    result = einsum_float32("bik,bjk->bij", left, right)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, exact, atol=1e-4)
    gradient = jax.grad(lambda x: einsum_float32("bik,bjk->bij", x, right).sum())(left)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(
        gradient.astype(jnp.float32),
        np.broadcast_to(np.asarray(right, np.float64).sum(1, keepdims=True), left.shape),
        rtol=2**-7,
        atol=2e-2,
    )


def test_decoding_in_bfloat16_runs_inside_a_loop() -> None:
    """Once: UNIMPLEMENTED: Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32."""
    groups, size, heads, key_heads, prompt, slots, dim = 4, 4, 4, 2, 32, 48, 32

    def draw(seed: int, *shape: int) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)

    prompt_keys, prompt_values = (
        draw(1, groups, key_heads, dim, prompt),
        draw(2, groups, key_heads, prompt, dim),
    )
    rows = groups * size * key_heads
    keys, values = draw(3, rows, dim, slots), draw(4, rows, slots, dim)
    queries, in_prompt = draw(0, groups, size, heads, dim), Seen.first(jnp.full(groups, prompt), prompt)

    @jax.jit
    def one(queries: jax.Array, step: jax.Array) -> jax.Array:
        written = jnp.broadcast_to(jnp.arange(slots) <= step, (groups, slots))
        seen = Seen(written, *(jnp.full((groups, size), n) for n in (step + 1, 0)), start=0)
        return decode(queries, Cached(prompt_keys, prompt_values, in_prompt), Cached(keys, values, seen))

    @jax.jit
    def loop(queries: jax.Array) -> jax.Array:
        def token(state):
            step, out = state
            return step + 1, one(out, step)

        return jax.lax.while_loop(lambda state: state[0] < 3, token, (jnp.int32(0), queries))[1]

    expected = queries
    for step in range(3):
        expected = one(expected, jnp.int32(step))
    np.testing.assert_allclose(loop(queries).astype(jnp.float32), expected.astype(jnp.float32), atol=2e-2)


def test_gradients_of_narrow_operands_are_products_of_narrow_numbers() -> None:
    """In float32 they took a tenth of an H200's gradient of the 2B."""
    hidden, head = (jax.random.normal(jax.random.key(k), (64, 64), jnp.bfloat16) for k in range(2))
    seen = jax.random.normal(jax.random.key(2), (64, 64))

    def loss(hidden: jax.Array, head: jax.Array) -> jax.Array:
        return (einsum_float32("td,dv->tv", hidden, head) * seen).sum()

    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(hidden, head)
    products = [equation for equation in program.eqns if equation.primitive.name == "dot_general"]
    assert len(products) == 2
    assert {operand.aval.dtype for product in products for operand in product.invars} == {
        jnp.dtype("bfloat16")
    }
    exact = (seen @ head.astype(jnp.float32).T, hidden.astype(jnp.float32).T @ seen)
    for got, expected in zip(jax.grad(loss, (0, 1))(hidden, head), exact, strict=True):
        error = np.asarray(got, np.float64) - np.asarray(expected, np.float64)
        assert np.sqrt((error**2).mean()) < 2**-8 * np.sqrt((np.asarray(expected) ** 2).mean())
