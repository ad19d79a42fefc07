"""Attention in C++: what it adds to ``test_kernels``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.attention.unshared import Group
from tests.kernels.native.compiler import NARROWER, compiled_for, needs_compiler
from vcap_jax.kernels import attention
from vcap_jax.kernels.attention.native import Native
from vcap_jax.kernels.native import library
from vcap_jax.parallel.sharding import MeshConfig, make_mesh

Arrays = tuple[jax.Array, ...]


def caches(
    batch: int,
    captions: int,
    heads: int,
    key_heads: int,
    size: int,
    prompt: int,
    tokens: int,
    dtype=jnp.float32,
) -> tuple[jax.Array, attention.Cached, attention.Cached]:
    """Arguments of ``attention.decode``: uneven prompts, the second is padding; captions with a hole."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), dtype)

    rows = batch * captions * key_heads
    lengths = jnp.asarray([max(0, prompt - 5 * i) if i != 1 else 0 for i in range(batch)])
    column = jnp.arange(tokens)
    written = (column < tokens // 3) | (column == 2 * tokens // 3)
    return (
        draw(batch, captions, heads, size),
        attention.Cached(
            draw(batch, key_heads, size, prompt),
            draw(batch, key_heads, prompt, size),
            attention.Seen.first(lengths, prompt),
        ),
        attention.Cached(
            draw(rows, size, tokens),
            draw(rows, tokens, size),
            attention.Seen(
                jnp.broadcast_to(written, (batch, tokens)),
                *(jnp.full((batch, captions), n) for n in (tokens // 3, 1)),
                start=2 * tokens // 3,
            ),
        ),
    )


@needs_compiler
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((1, 8, 8, 2, 32, 1088, 256), id="the benchmark's"),
        pytest.param((3, 2, 4, 2, 32, 64, 64), id="embedded"),
        pytest.param((2, 3, 6, 1, 9, 203, 50), id="nothing fits"),
        pytest.param((3, 3, 6, 1, 9, 603, 450), id="nothing fits, several blocks"),
        pytest.param((1, 40, 4, 1, 16, 200, 7), id="more rows than a block"),
        pytest.param((1, 2, 64, 2, 64, 70, 200), id="many heads of one key head"),
    ],
)
def test_a_new_token_sees_what_it_sees_in_plain_xla(shape: tuple[int, ...]) -> None:
    arguments = caches(*shape)
    ours, plain = jax.jit(Native().decode)(*arguments), jax.jit(attention.decode)(*arguments)
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5 * float(jnp.abs(plain).max()))


@needs_compiler
def test_a_new_token_in_bfloat16() -> None:
    arguments = caches(2, 3, 4, 2, 32, 40, 20, dtype=jnp.bfloat16)
    ours, plain = jax.jit(Native().decode)(*arguments), jax.jit(attention.decode)(*arguments)
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(ours.astype(jnp.float32), plain.astype(jnp.float32), atol=2e-2)


@needs_compiler
def test_devices_compute_their_own_groups_and_heads() -> None:
    """Under a mesh nobody computes everything, and the parts are the whole: forward, backward and for a new token."""
    group = Group(prompt=21, group=2, tokens=10, lengths=(21, 9))
    lengths, arrays = jnp.asarray(group.lengths), group.arrays()

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Arrays]:
        def grouped(*arrays: jax.Array) -> jax.Array:
            out = attention.grouped(*arrays, lengths, group.prompt, group.group, Native())
            return jnp.where(group.real[..., None, None], out, 0)

        out, pull = jax.vjp(grouped, q, k, v)
        return out, pull(jnp.cos(out))

    token = caches(2, 3, 4, 2, 32, 40, 20)
    alone = jax.jit(run)(*arrays), jax.jit(Native().decode)(*token)
    with jax.set_mesh(make_mesh(MeshConfig(fsdp=2, tensor=2))):
        divided = jax.jit(run)(*arrays), jax.jit(Native().decode)(*token)
        program = jax.jit(run).lower(*arrays).compile().as_text()
    for ours, whole in zip(jax.tree.leaves(divided), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours, whole, atol=1e-6)
    # A device's part of [2 groups, 21 + 20 tokens, heads, d]: one group, half of the heads.
    queries = arrays[0].shape
    assert f"f32[1,{group.prompt},{queries[2] // 2},{queries[3]}]" in program


@needs_compiler
def test_the_same_numbers_every_time() -> None:
    """Threads take tasks as they come; what they compute does not depend on who takes which."""
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.standard_normal((1, 700, 4, 32)), jnp.float32)
    k = jnp.asarray(rng.standard_normal((1, 700, 2, 32)), jnp.float32)

    @jax.jit
    def run(q: jax.Array, k: jax.Array) -> tuple[jax.Array, Arrays]:
        out, pull = jax.vjp(lambda q, k: attention.causal(q, k, k, Native()), q, k)
        return out, pull(out)

    first = jax.tree.map(np.asarray, run(q, k))
    for _ in range(20):
        jax.tree.map(np.testing.assert_array_equal, first, jax.tree.map(np.asarray, run(q, k)))


@needs_compiler
def test_a_number_that_is_none_is_not_hidden() -> None:
    q = jnp.ones((1, 40, 2, 16)).at[0, 7, 1, 3].set(jnp.nan)
    out = attention.causal(q, jnp.ones((1, 40, 2, 16)), jnp.ones((1, 40, 2, 16)), Native())
    assert jnp.isnan(out[0, 7, 1]).all()
    assert jnp.isfinite(out[0, 7, 0]).all()
    keys = jnp.ones((1, 40, 2, 16)).at[0, 7, 1, 3].set(jnp.nan)
    out = attention.causal(jnp.ones((1, 40, 2, 16)), keys, jnp.ones((1, 40, 2, 16)), Native())
    assert jnp.isnan(out[0, 7:, 1]).all()
    assert jnp.isfinite(out[0, :7]).all()


@needs_compiler
def test_a_number_that_is_none_is_not_hidden_behind_the_first_block() -> None:
    ones = jnp.ones((1, 700, 1, 16))
    out, lse = Native().forward(ones, ones.at[0, 500, 0, 3].set(jnp.nan), ones, None, causal=False)
    assert jnp.isnan(out).all()
    assert jnp.isnan(lse).all()


@jax.jit
def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> Arrays:
    return Native().forward(q, k, v, None, causal=False)


@needs_compiler
@pytest.mark.parametrize(
    "rise",
    [0.0, 6.0, 200.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (2.0, 5.0, 8.0, 60.0, -60.0))],
)
def test_scores_that_rise_from_block_to_block(rise: float) -> None:
    """A block's weights are made with the largest score of the blocks before it, unless its own are much larger."""
    check_rising(forward, rise)


def check_rising(forward: Callable[..., Arrays], rise: float) -> None:
    """forward: as ``forward`` below."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1000, 2, 16)).astype(np.float32) for _ in range(3))
    q[..., 0], k[..., 0] = 4.0, rise * (np.arange(1000) // 192)[None, :, None]
    out, lse = forward(q, k, v)
    scores = np.einsum("nqhd,nkhd->nhqk", q.astype(np.float64), k.astype(np.float64)) / 4
    exact = np.logaddexp.reduce(scores, axis=-1)
    weights = np.exp(scores - exact[..., None])
    np.testing.assert_allclose(lse, exact, rtol=1e-6, atol=1e-5)
    tolerance = 2e-5 + np.abs(scores).max() * 2.0**-23  # of the scores themselves
    np.testing.assert_allclose(out, np.einsum("nhqk,nkhd->nqhd", weights, v), rtol=1e-4, atol=tolerance)


@needs_compiler
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_weights_are_powers_to_the_last_digits(spread: float) -> None:
    """One key and value per query and head size 1: the log-sum-exp of two scores, and their weights, by themselves."""
    scores = np.linspace(-spread, spread, 4001, dtype=np.float32)
    queries = jnp.asarray(scores)[None, :, None, None]
    keys = jnp.asarray([0.0, 1.0])[None, :, None, None]
    out, lse = Native().forward(queries, keys, keys, None, causal=False)
    exact = scores.astype(np.float64)
    tolerance = 1e-6 + spread * 2.0**-23  # of the score itself
    np.testing.assert_allclose(out[0, :, 0, 0], 1 / (1 + np.exp(-exact)), rtol=tolerance, atol=1e-37)
    np.testing.assert_allclose(lse[0, 0], np.logaddexp(0, exact), rtol=3e-6, atol=1e-7)


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("processor", NARROWER)
def test_processors_with_narrower_vectors(processor: str, tmp_path_factory) -> None:
    """Their tiles are others; once, tiles that did not fit into each other wrote behind their buffers."""
    with compiled_for(processor, tmp_path_factory):
        ours = uneven_group_and_token(Native())
        theirs = jax.jit(lambda q, k, v: Native().forward(q, k, v, None, causal=False))
        for rise in (0.0, 6.0, 200.0):
            check_rising(theirs, rise)
    for x, y in zip(ours, dense_group_and_token(), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


def uneven_group_and_token(kernel: attention.Kernel) -> list[np.ndarray]:
    """Output and gradients of a group, and the output for a new token; programs of their own at every call."""
    group = Group(prompt=205, group=3, tokens=101, lengths=(205, 90), heads=4, key_heads=2, dim=20)

    @jax.jit
    def run(lengths: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, Arrays]:
        def grouped(*arrays: jax.Array) -> jax.Array:
            out = attention.grouped(*arrays, lengths, group.prompt, group.group, kernel)
            return jnp.where(group.real[..., None, None], out, 0)

        out, pull = jax.vjp(grouped, *arrays)
        return out, pull(jnp.cos(out))

    found = run(jnp.asarray(group.lengths), *group.arrays())
    token = jax.jit(lambda *x: kernel.decode(*x))(*caches(2, 3, 6, 1, 9, 603, 50))
    return [np.asarray(x) for x in jax.tree.leaves((found, token))]


@functools.cache
def dense_group_and_token() -> list[np.ndarray]:
    return uneven_group_and_token(attention.kernel("dense"))


def test_without_a_compiler_the_remedy_is_named(monkeypatch, caplog) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    library.targets.cache_clear()
    try:
        with pytest.raises(attention.UnsupportedAttention, match=r"there is no no-such-compiler.*=chunked"):
            attention.choose("native", platform="cpu", dtype=jnp.float32, head_sizes={"text": 32})
        chosen = attention.choose("auto", platform="cpu", dtype=jnp.float32, head_sizes={"text": 32})
    finally:
        library.targets.cache_clear()
    assert chosen.name == "chunked"
    assert "cannot be used" in caplog.text


def test_too_many_heads_are_refused() -> None:
    arguments = caches(1, 1, 97, 1, 8, 4, 4)
    with pytest.raises(attention.UnsupportedAttention, match="96 query heads per key head, not 97"):
        Native().decode(*arguments)
