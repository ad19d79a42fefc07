"""The chunked rule against the recurrence token by token, whatever the length, and what padding must not do."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.models.qwen3_5 import delta_rule

N, KEY_HEADS, HEADS, KEY, VALUE = 2, 2, 4, 8, 6
Inputs = tuple[np.ndarray, ...]


def inputs(length: int, seed: int = 0) -> Inputs:
    """q, k, v, decay, beta of ``length`` tokens."""
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal((N, length, KEY_HEADS, KEY)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((N, length, HEADS, VALUE)).astype(np.float32)
    decay = -rng.exponential(0.3, (N, length, HEADS)).astype(np.float32)
    return q, k, v, decay, rng.uniform(0, 1, (N, length, HEADS)).astype(np.float32)


def memory(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((N, HEADS, KEY, VALUE)).astype(np.float32)


@jax.jit
def by_step(arrays: Inputs, start: np.ndarray) -> tuple[jax.Array, jax.Array]:
    def one(state: jax.Array, token: Inputs) -> tuple[jax.Array, jax.Array]:
        out, state = delta_rule.step(*token, state)
        return state, out

    state, out = jax.lax.scan(one, jnp.asarray(start), tuple(jnp.moveaxis(a, 1, 0) for a in arrays))
    return jnp.moveaxis(out, 0, 1), state


@jax.jit
def by_chunk(arrays: Inputs, start: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return delta_rule.rule(*arrays, start, chunk=4)


def test_a_step_is_the_papers_recurrence() -> None:
    q, k, v, decay, beta = (a[:, 0] for a in inputs(1))
    out, state = delta_rule.step(q, k, v, decay, beta, memory())
    for n in range(N):
        for head in range(HEADS):
            key = k[n, head // 2] / np.sqrt(np.sum(k[n, head // 2] ** 2) + 1e-6)
            query = q[n, head // 2] / np.sqrt(np.sum(q[n, head // 2] ** 2) + 1e-6) / np.sqrt(KEY)
            kept = np.exp(decay[n, head]) * memory()[n, head]
            expected = kept + np.outer(key, beta[n, head] * (v[n, head] - key @ kept))
            np.testing.assert_allclose(state[n, head], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(out[n, head], query @ expected, rtol=1e-5, atol=1e-6)


# 70 tokens are two segments of sixteen chunks of four.
@pytest.mark.parametrize("length", [1, 3, 4, 9, 64, 70])
def test_chunks_equal_steps(length: int) -> None:
    arrays, start = inputs(length), memory()
    for ours, reference in zip(by_chunk(arrays, start), by_step(arrays, start), strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-5)


def test_gradients_of_chunks_equal_those_of_steps() -> None:
    arrays, start = inputs(70), memory()
    weights = np.random.default_rng(2).standard_normal((N, 70, HEADS, VALUE)).astype(np.float32)

    def loss(run: object, arrays: Inputs, start: np.ndarray) -> jax.Array:
        out, state = run(arrays, start)  # type: ignore[operator]
        return jnp.sum(out * weights) + jnp.sum(state**2)

    ours, reference = (
        jax.jit(jax.grad(lambda *a, run=run: loss(run, *a), argnums=(0, 1)))(arrays, start)
        for run in (by_chunk, by_step)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(np.abs(b).max()))


@pytest.mark.parametrize("size", [1, 2, 64])
def test_the_inverse_and_its_gradient(size: int) -> None:
    """Keys that are all alike, the hardest case, among random ones: their system's powers would overflow."""
    lower = np.tril(np.random.default_rng(0).uniform(-1, 1, (3, size, size)), -1).astype(np.float32)
    lower[0] = np.tril(np.ones((size, size)), -1)
    exact = np.linalg.inv(np.eye(size) + lower.astype(np.float64))
    np.testing.assert_allclose(jax.jit(delta_rule.inverse)(lower), exact, atol=1e-5 * np.abs(exact).max())
    weights = np.random.default_rng(1).standard_normal(lower.shape).astype(np.float32)

    def slope(inverse: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return jax.jit(jax.grad(lambda a: jnp.sum(inverse(a) * weights[:1])))(lower[:1])

    ours = slope(delta_rule.inverse)
    plain = slope(lambda a: jnp.linalg.inv(jnp.eye(size) + jnp.tril(a, -1)))
    np.testing.assert_allclose(ours, plain, atol=1e-4 * np.abs(plain).max())


def test_no_program_calls_lapack() -> None:
    """Whose threads wait for each other, see ``delta_rule.inverse``."""
    lowered = jax.jit(jax.grad(lambda a: delta_rule.rule(*a, memory())[0].sum())).lower(inputs(70))
    assert "lapack" not in lowered.as_text()


def test_a_token_without_decay_and_change_leaves_the_memory() -> None:
    q, k, v, decay, beta = inputs(9)
    decay[:, 5:], beta[:, 5:] = 0, 0
    padded = by_chunk((q, k, v, decay, beta), memory())[1]
    short = by_chunk(tuple(a[:, :5] for a in (q, k, v, decay, beta)), memory())[1]
    np.testing.assert_allclose(padded, short, rtol=1e-5, atol=1e-6)


def test_a_strong_decay_does_not_overflow() -> None:
    q, k, v, decay, beta = inputs(16)
    arrays = (q, k, v, np.full_like(decay, -80), beta)
    out, slopes = (
        by_chunk(arrays, memory())[0],
        jax.jit(jax.grad(lambda a: by_chunk(a, memory())[0].sum()))(arrays),
    )
    assert np.isfinite(out).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_the_convolution_sees_its_own_channel_and_the_tokens_before() -> None:
    rng = np.random.default_rng(0)
    x, before = rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 2, 3))
    kernel = rng.standard_normal((3, 3))
    ours = delta_rule.convolved(*(a.astype(np.float32) for a in (x, before, kernel)))
    joined = np.concatenate([before, x], axis=1)
    for t in range(5):
        expected = np.sum(joined[:, t : t + 3] * kernel, axis=1)
        np.testing.assert_allclose(ours[:, t], expected / (1 + np.exp(-expected)), rtol=1e-5, atol=1e-6)


def test_the_convolutions_last_inputs_are_those_of_real_tokens() -> None:
    x, before = np.arange(10.0).reshape(2, 5, 1), np.array([[[-2.0], [-1.0]], [[-4.0], [-3.0]]])
    found = delta_rule.last_inputs(x, before, jnp.array([1, 0]))
    np.testing.assert_array_equal(found[..., 0], [[-1, 0], [-4, -3]])
    np.testing.assert_array_equal(delta_rule.last_inputs(x, before, None)[..., 0], [[3, 4], [8, 9]])
