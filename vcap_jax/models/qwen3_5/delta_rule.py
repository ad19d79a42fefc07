"""The gated delta rule: a memory of keys and values of fixed size, and the short convolution in front of it.

A head's memory S [Dk, Dv] goes from token to token as ``S = exp(g) S; S += k (beta (v - k^T S))^T`` and answers
``q^T S`` (Yang et al., "Gated Delta Networks", equation 10). ``rule`` computes a sequence in chunks (section 3.3
there), ``step`` a single token. Both match the public Qwen3.5 implementation (``torch_chunk_gated_delta_rule`` and
``torch_recurrent_gated_delta_rule`` of transformers 5.23), and like it compute in float32.

Letters in shapes: N sequences, S tokens, K key heads, R value heads to each, H = K R value heads, Dk and Dv numbers of
a key and a value, C tokens of a chunk.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.models.layers import silu

Array = jax.Array

CHUNK = 64
"""Tokens that are computed at once."""
SEGMENT = 16
"""Chunks whose intermediate results are in memory together; the backward pass computes them again."""
_EPS = 1e-6
# A memory is the sum of thousands of tokens: products of fewer digits, an accelerator's default, would show in it.
_PRECISION = jax.lax.Precision.HIGHEST


def rule(
    q: Array, k: Array, v: Array, decay: Array, beta: Array, memory: Array, *, chunk: int = CHUNK
) -> tuple[Array, Array]:
    """Answers [N, S, H, Dv], in the type of ``v``, and the memory behind the last token.

    q, k: [N, S, K, Dk], of any length: they are normalised. v: [N, S, H, Dv]. decay: float32 [N, S, H], log of what is
    kept, <= 0. beta: [N, S, H], share of an old value that a new one replaces. memory: float32 [N, H, Dk, Dv] before
    the first token. chunk: a power of two. A token of decay 0 and beta 0 leaves it as it is.
    """
    batch, length, key_heads, key_dim = q.shape
    repeats, value_dim = v.shape[2] // key_heads, v.shape[3]
    chunk = min(chunk, 1 << (length - 1).bit_length())
    chunks = -(-length // chunk)
    segment = min(SEGMENT, chunks)
    segments = -(-chunks // segment)

    def cut(x: Array) -> Array:
        """[N, S, ...] -> [segments, N, chunks, C, ...]."""
        missing = segments * segment * chunk - length
        x = jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, segments, segment, chunk, *x.shape[2:]), 1, 0)

    def by_key(x: Array) -> Array:
        return x.reshape(*x.shape[:2], key_heads, repeats, *x.shape[3:])

    inputs = tuple(cut(x) for x in (q, k, by_key(v), by_key(decay), by_key(beta)))
    memory = memory.reshape(batch, key_heads, repeats, key_dim, value_dim)
    memory, out = jax.lax.scan(jax.checkpoint(_segment, prevent_cse=False), memory, inputs)
    out = jnp.moveaxis(out, 0, 1).reshape(batch, -1, key_heads * repeats, value_dim)[:, :length]
    return out, memory.reshape(batch, -1, key_dim, value_dim)


def step(q: Array, k: Array, v: Array, decay: Array, beta: Array, memory: Array) -> tuple[Array, Array]:
    """``rule`` for one token of each sequence: q, k [N, K, Dk], v [N, H, Dv], decay, beta [N, H]."""
    heads, key_heads = v.shape[1], q.shape[1]
    queries, keys = (jnp.repeat(x, heads // key_heads, axis=1) for x in _normalised(q, k))
    kept = memory * jnp.exp(decay)[..., None, None]
    known = jnp.sum(kept * keys[..., None], axis=-2)
    change = (v.astype(jnp.float32) - known) * beta.astype(jnp.float32)[..., None]
    memory = kept + keys[..., None] * change[..., None, :]
    return jnp.sum(memory * queries[..., None], axis=-2).astype(v.dtype), memory


def convolved(x: Array, before: Array, kernel: Array) -> Array:
    """Each channel's own causal convolution, then SiLU: [N, S, channels], in the type of ``x``.

    before: [N, W - 1, channels], what came before ``x``. kernel: [W, channels].
    """
    width, length = kernel.shape[0], x.shape[1]
    joined = jnp.concatenate([before, x], axis=1)
    taps = (
        joined[:, i : i + length].astype(jnp.float32) * kernel[i].astype(jnp.float32) for i in range(width)
    )
    return silu(sum(taps, start=jnp.zeros((), jnp.float32)).astype(x.dtype))


def last_inputs(x: Array, before: Array, counts: Array | None) -> Array:
    """What the convolution of the next token needs: the last W - 1 of ``before`` [N, W - 1, channels] and the first
    ``counts`` [N] tokens of x [N, S, channels] (None: all of them)."""
    joined = jnp.concatenate([before, x], axis=1)
    if counts is None:
        return joined[:, x.shape[1] :]
    width = before.shape[1]
    return jax.vmap(lambda rows, start: jax.lax.dynamic_slice_in_dim(rows, start, width, 0))(joined, counts)


@jax.custom_vjp
def inverse(lower: Array) -> Array:
    """Of ``I + lower``, float32 [..., C, C], which is zero on and above the diagonal; C is a power of two.

    By halves: [[A, 0], [B, D]] has the inverse [[A', 0], [-D' B A', D']], first for all blocks of two rows, then of
    four, and so on, as exact as substitution row by row. ``triangular_solve`` would be a call to LAPACK on a CPU, which
    jaxlib 0.10 splits over the threads that XLA runs it on: several at once wait for each other for ever.
    """
    size = lower.shape[-1]
    found = jnp.broadcast_to(jnp.eye(size, dtype=lower.dtype), lower.shape)
    rows = jnp.arange(size)
    half = 1
    while half < size:
        block, low = rows // (2 * half), rows // half % 2 == 1
        corner = (block[:, None] == block[None, :]) & low[:, None] & ~low[None, :]
        below = jnp.where(corner, lower, 0)
        found = found - (below if half == 1 else _matmul(_matmul(found, below), found))
        half *= 2
    return found


def _inverse_forward(lower: Array) -> tuple[Array, Array]:
    found = inverse(lower)
    return found, found


def _inverse_backward(found: Array, gradient: Array) -> tuple[Array]:
    transposed = jnp.swapaxes(found, -1, -2)
    return (-jnp.tril(_matmul(_matmul(transposed, gradient), transposed), -1),)


inverse.defvjp(_inverse_forward, _inverse_backward)


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=_PRECISION)


def _normalised(q: Array, k: Array) -> tuple[Array, Array]:
    """Queries and keys of length 1 in float32, queries over the root of their size."""
    q, k = (x.astype(jnp.float32) for x in (q, k))
    q, k = (x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _EPS) for x in (q, k))
    return q * q.shape[-1] ** -0.5, k


def _segment(memory: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
    """Some chunks: memory [N, K, R, Dk, Dv]; q, k [N, n, C, K, Dk], v [N, n, C, K, R, Dv], decay, beta [N, n, C, K, R].

    All changes that a chunk's tokens make are the solution of one triangular system, for each sees the ones before it.
    """
    raw_q, raw_k, raw_v, decay, beta = inputs
    q, k = (jnp.transpose(x, (1, 0, 3, 2, 4)) for x in _normalised(raw_q, raw_k))  # [n, N, K, C, Dk]
    v = jnp.transpose(raw_v.astype(jnp.float32), (1, 0, 3, 4, 2, 5))  # [n, N, K, R, C, Dv]
    decay, beta = (jnp.transpose(x.astype(jnp.float32), (1, 0, 3, 4, 2)) for x in (decay, beta))
    since = jnp.cumsum(decay, axis=-1)  # [n, N, K, R, C]: from the chunk's start
    size = since.shape[-1]
    earlier = jnp.tril(jnp.ones((size, size), bool))
    # Masked before the exponential, whose positive half would overflow.
    between = jnp.exp(jnp.where(earlier, since[..., :, None] - since[..., None, :], -jnp.inf))

    def product(subscripts: str, *arrays: Array) -> Array:
        return jnp.einsum(subscripts, *arrays, precision=_PRECISION)

    among = product("nbkid,nbkjd->nbkij", k, k)[:, :, :, None] * between
    seen_before = jnp.where(jnp.eye(size, dtype=bool), 0.0, among * beta[..., :, None])
    scores = product("nbkid,nbkjd->nbkij", q, k)[:, :, :, None] * between
    from_start = k[:, :, :, None] * jnp.exp(since)[..., None]
    right = jnp.concatenate([v, from_start], axis=-1) * beta[..., None]
    solved = product("nbkrij,nbkrjd->nbkrid", inverse(seen_before), right)
    new, seen = jnp.split(solved, [v.shape[-1]], axis=-1)
    asked = q[:, :, :, None] * jnp.exp(since)[..., None]
    to_end = k[:, :, :, None] * jnp.exp(since[..., -1:] - since)[..., None]

    def chunk(memory: Array, of: tuple[Array, ...]) -> tuple[Array, Array]:
        new, seen, asked, scores, to_end, kept = of
        changes = new - product("bkrid,bkrde->bkrie", seen, memory)
        out = product("bkrid,bkrde->bkrie", asked, memory) + product("bkrij,bkrje->bkrie", scores, changes)
        memory = memory * kept[..., None, None] + product("bkrid,bkrie->bkrde", to_end, changes)
        return memory, out

    each = (new, seen, asked, scores, to_end, jnp.exp(since[..., -1]))
    memory, out = jax.lax.scan(chunk, memory, each)  # out: [n, N, K, R, C, Dv]
    return memory, jnp.transpose(out, (1, 0, 4, 2, 3, 5)).astype(raw_v.dtype)
