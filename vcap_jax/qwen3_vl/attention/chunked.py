"""Attention in blocks of queries and keys, in plain XLA: for every platform that has no kernel of its own.

Only a block of scores exists at a time (Dao et al., FlashAttention-2, written as array operations): forward, a
running maximum and sum per query; backward, one pass over key blocks that computes the scores again. Blocks above
the diagonal and beyond the longest key length are not computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from vcap_jax.qwen3_vl.attention.kernel import Attended
from vcap_jax.qwen3_vl.attention.scores import MASKED
from vcap_jax.qwen3_vl.products import einsum_float32

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Chunked:
    """block: the most queries and keys of a block; diagonal: where attention is causal, if that is less, because half
    of each block on the diagonal is computed for nothing. whole: up to so many scores are kept in memory instead."""

    block: int = 512
    diagonal: int = 256
    whole: int = 1 << 16
    name: str = "chunked"

    def parts(self, scores: int) -> Chunked | None:
        return self if scores > self.whole else None

    def check(self, dtype: Any, head_size: int) -> None:
        """Any type and size will do."""

    def _blocks(self, queries: Array, keys: Array, lengths: Array | None, *, causal: bool) -> _Blocks:
        size = min(self.diagonal, self.block) if causal else self.block
        return _Blocks.of(queries, keys, lengths, size, causal=causal)

    def forward(
        self, queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
    ) -> tuple[Array, Array]:
        """See ``Parts``; the output is float32."""
        blocks = self._blocks(queries, keys, lengths, causal=causal)
        query_blocks, (key_blocks, value_blocks) = blocks.rows(queries), map(blocks.columns, (keys, values))

        def row(block: tuple[Array, Array]) -> tuple[Array, Array]:
            i, q = block
            running = (*q.shape[:-1],)

            def column(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                largest, total, out = state
                scores = blocks.scores(q, key_blocks[j], i, j)
                new = jnp.maximum(largest, scores.max(-1))
                weights, shrink = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
                added = einsum_float32("nkqs,nksd->nkqd", weights.astype(values.dtype), value_blocks[j])
                return new, total * shrink + weights.sum(-1), out * shrink[..., None] + added

            empty = (jnp.full(running, MASKED), jnp.zeros(running), jnp.zeros(q.shape, jnp.float32))
            largest, total, out = jax.lax.fori_loop(0, blocks.last_column(i), column, empty)
            return out / total[..., None], largest + jnp.log(total)

        out, lse = jax.lax.map(row, (jnp.arange(blocks.row_count), query_blocks))
        return blocks.from_rows(out), blocks.from_rows(lse[..., None])[..., 0].swapaxes(1, 2)

    def backward(self, attended: Attended, gradient: Array, *, causal: bool) -> tuple[Array, Array, Array]:
        """See ``Parts``; gradients are float32."""
        queries, keys, values, lengths, out, lse = attended
        blocks = self._blocks(queries, keys, lengths, causal=causal)
        delta = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), -1, keepdims=True)
        query_blocks, gradient_blocks, delta_blocks = map(blocks.rows, (queries, gradient, delta))
        # Keys come first in a block of scores: two of the three products that read it then take it as it lies.
        lse_blocks = blocks.rows(lse.swapaxes(1, 2)[..., None]).swapaxes(-1, -2)
        delta_blocks = delta_blocks.swapaxes(-1, -2)
        key_blocks, value_blocks = map(blocks.columns, (keys, values))
        scale, dtype = blocks.scale, queries.dtype

        def column(d_queries: Array, block: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            j, k, v = block

            def row(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                d_queries, d_k, d_v = state
                q, d_out = query_blocks[i], gradient_blocks[i]
                weights = jnp.exp(blocks.scores(q, k, i, j, keys_first=True) - lse_blocks[i])
                d_v += einsum_float32("nksq,nkqd->nksd", weights.astype(dtype), d_out)
                d_weights = einsum_float32("nksd,nkqd->nksq", v, d_out)
                d_scores = (weights * (d_weights - delta_blocks[i]) * scale).astype(dtype)
                d_k += einsum_float32("nksq,nkqd->nksd", d_scores, q)
                d_q = d_queries[i] + einsum_float32("nksq,nksd->nkqd", d_scores, k)
                return jax.lax.dynamic_update_index_in_dim(d_queries, d_q, i, 0), d_k, d_v

            zeros = jnp.zeros(k.shape, jnp.float32)
            first = blocks.first_row(j)
            d_queries, d_k, d_v = jax.lax.fori_loop(first, blocks.row_count, row, (d_queries, zeros, zeros))
            return d_queries, (d_k, d_v)

        d_queries, (d_keys, d_values) = jax.lax.scan(
            column,
            jnp.zeros(query_blocks.shape, jnp.float32),
            (jnp.arange(blocks.column_count), key_blocks, value_blocks),
        )
        return blocks.from_rows(d_queries), blocks.from_columns(d_keys), blocks.from_columns(d_values)


CHUNKED = Chunked()
"""The kernel that runs everywhere, with its usual blocks."""


@dataclass(frozen=True)
class _Blocks:
    """How queries (rows) and keys (columns) are cut, and which of their scores count.

    Blocks are as even as can be, so that little is padding: 600 queries are twice 300, not 512 and 88. A row block
    has all the query heads that read a key head side by side: [N, K, (H / K) * row_size, d].
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    lengths: Array
    row_count: int
    row_size: int
    column_count: int
    column_size: int
    causal: bool

    @classmethod
    def of(cls, queries: Array, keys: Array, lengths: Array | None, block: int, *, causal: bool) -> _Blocks:
        def cut(length: int) -> tuple[int, int]:
            count = max(1, math.ceil(length / block))
            return count, math.ceil(length / count)

        if lengths is None:
            lengths = jnp.full(keys.shape[0], keys.shape[1])
        return cls(
            queries.shape, keys.shape, lengths, *cut(queries.shape[1]), *cut(keys.shape[1]), causal=causal
        )

    @property
    def scale(self) -> float:
        return self.queries[-1] ** -0.5

    def rows(self, x: Array) -> Array:
        """[N, S, H, d] -> [row_count, N, K, (H / K) * row_size, d]."""
        batch, length, _, dim = x.shape
        x = jnp.pad(x, ((0, 0), (0, self.row_count * self.row_size - length), (0, 0), (0, 0)))
        x = x.reshape(batch, self.row_count, self.row_size, self.keys[2], -1, dim).transpose(1, 0, 3, 4, 2, 5)
        return x.reshape(self.row_count, batch, self.keys[2], -1, dim)

    def from_rows(self, x: Array) -> Array:
        """The way back."""
        count, batch, key_heads, _, dim = x.shape
        x = x.reshape(count, batch, key_heads, -1, self.row_size, dim).transpose(1, 0, 4, 2, 3, 5)
        return x.reshape(batch, count * self.row_size, -1, dim)[:, : self.queries[1]]

    def columns(self, x: Array) -> Array:
        """[N, L, K, d] -> [column_count, N, K, column_size, d]."""
        batch, length, key_heads, dim = x.shape
        x = jnp.pad(x, ((0, 0), (0, self.column_count * self.column_size - length), (0, 0), (0, 0)))
        return x.reshape(batch, self.column_count, self.column_size, key_heads, dim).transpose(1, 0, 3, 2, 4)

    def from_columns(self, x: Array) -> Array:
        """The way back."""
        count, batch, key_heads, size, dim = x.shape
        x = x.transpose(1, 0, 3, 2, 4).reshape(batch, count * size, key_heads, dim)
        return x[:, : self.keys[1]]

    def last_column(self, row: Array) -> Array:
        """How many column blocks row block ``row`` has to look at."""
        if self.causal:
            return row + 1
        return jnp.maximum(-(-self.lengths.max() // self.column_size), 1)

    def first_row(self, column: Array) -> Array:
        """The first row block that looks at column block ``column``; ``row_count`` if none does."""
        if self.causal:
            return column
        return jnp.where(column * self.column_size < self.lengths.max(), 0, self.row_count)

    def scores(
        self, queries: Array, keys: Array, row: Array, column: Array, *, keys_first: bool = False
    ) -> Array:
        """Scaled scores [N, K, (H / K) * row_size, column_size] of a block, MASKED where nothing is seen.

        keys_first: the last two axes are swapped.
        """
        equation, at = ("nksd,nkqd->nksq", (3, 2)) if keys_first else ("nkqd,nksd->nkqs", (2, 3))
        operands = (keys, queries) if keys_first else (queries, keys)
        scores = einsum_float32(equation, *operands) * self.scale

        def along(x: Array, axis: int) -> Array:
            """[..., n] with n on ``axis`` of the scores."""
            return x[..., None] if axis == 2 else x[..., None, :]

        key = column * self.column_size + jnp.arange(self.column_size)
        if not self.causal:
            visible = along((key < self.lengths[:, None])[:, None], at[1])
        else:
            query = jnp.tile(
                row * self.row_size + jnp.arange(self.row_size), scores.shape[at[0]] // self.row_size
            )
            visible = along(key, at[1]) <= along(query, at[0])
        return jnp.where(visible, scores, MASKED)
