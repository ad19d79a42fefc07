"""Attention in blocks of queries and keys, in plain XLA: for every platform that has no kernel of its own.

Only a block of scores exists at a time (Dao et al., FlashAttention-2, written as array operations):
forward, a running maximum and sum per query; backward, one pass over key blocks that computes the
scores again. Blocks above the diagonal and beyond the longest key length are not computed, and
blocks that are seen whole are not masked.

On CPUs a pass over a block of scores costs about as much as a product: on two cores a score takes
1.8 ns, of which the two products are 0.9 and the exponential 0.5. So there are few passes. The
maximum is taken of unscaled scores, because the scale costs nothing in front of the exponential. In
the backward pass keys come first, so that two of the three products that read a block take it as it
lies; XLA's CPU products are 2 to 3 times slower otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vcap_jax.kernels.attention.decode import decode
from vcap_jax.kernels.attention.kernel import Attended
from vcap_jax.kernels.attention.scores import MASKED
from vcap_jax.kernels.matmul import einsum_float32
from vcap_jax.parallel.group_sharding import group_ways

Array = jax.Array
Arrays = TypeVar("Arrays")
Results = TypeVar("Results")


@dataclass(frozen=True, kw_only=True)
class Chunked:
    """The usual settings are those that were quickest on CPUs (``benchmarks/attention.py`` takes others).

    queries: the most of a block, those of all heads that read a key head counted, but one token's at least. scores: a
    block has so many keys that it has at most this many scores, those of all heads counted, since it should stay in a
    cache; and if the sequences of a batch have more together, they are computed one after the other. diagonal: the most
    tokens on either side of a block where attention is causal, because half of what lies on the diagonal is computed
    for nothing. whole: up to so many scores of a whole pattern are kept in memory instead.
    """

    queries: int = 1024
    scores: int = 1 << 19
    diagonal: int = 512
    whole: int = 1 << 16
    name: str = "chunked"
    decoding: str = "dense"
    range_block = None
    decode = staticmethod(decode)

    def parts(self, scores: int) -> Chunked | None:
        return self if scores > self.whole else None

    def check(self, dtype: DTypeLike, head_size: int) -> None:
        """Any type and size will do."""

    def _blocks(self, queries: Array, keys: Array, lengths: Array | None, *, causal: bool) -> _Blocks:
        _, tokens, heads, _ = queries.shape
        rows = min(tokens, max(1, self.queries * keys.shape[2] // heads))
        columns = max(1, self.scores // (heads * rows))
        if causal:
            rows, columns = min(rows, self.diagonal), min(columns, self.diagonal)
        return _Blocks.of(queries, keys, lengths, rows, columns, causal=causal)

    def forward(
        self, queries: Array, keys: Array, values: Array, lengths: Array | None, *, causal: bool
    ) -> tuple[Array, Array]:
        """See ``Parts``; the output is float32."""
        blocks = self._blocks(queries, keys, lengths, causal=causal)
        pieces = blocks.pieces(self.scores)
        if pieces > 1:
            return _one_after_the_other(
                lambda arrays: self.forward(*arrays, causal=causal), (queries, keys, values, lengths), pieces
            )
        query_blocks, (key_blocks, value_blocks) = blocks.rows(queries), map(blocks.columns, (keys, values))

        def row(block: tuple[Array, Array]) -> tuple[Array, Array]:
            i, q = block
            running = (*q.shape[:-1],)

            def column(
                j: Array, state: tuple[Array, Array, Array], *, masked: bool
            ) -> tuple[Array, Array, Array]:
                largest, total, out = state
                scores = blocks.scores(q, key_blocks[j], i, j, masked=masked)
                new = jnp.maximum(largest, scores.max(-1))
                weights = jnp.exp(scores * blocks.scale - (new * blocks.scale)[..., None])
                shrink = jnp.exp((largest - new) * blocks.scale)
                added = einsum_float32("nkqs,nksd->nkqd", weights.astype(values.dtype), value_blocks[j])
                return new, total * shrink + weights.sum(-1), out * shrink[..., None] + added

            empty = (jnp.full(running, MASKED), jnp.zeros(running), jnp.zeros(q.shape, jnp.float32))
            whole, last = blocks.columns_of(i)
            state = jax.lax.fori_loop(0, whole, functools.partial(column, masked=False), empty)
            largest, total, out = jax.lax.fori_loop(
                whole, last, functools.partial(column, masked=True), state
            )
            return out / total[..., None], largest * blocks.scale + jnp.log(total)

        out, lse = jax.lax.map(row, (jnp.arange(blocks.row_count), query_blocks))
        return blocks.from_rows(out), blocks.from_rows(lse[..., None])[..., 0].swapaxes(1, 2)

    def backward(self, attended: Attended, gradient: Array, *, causal: bool) -> tuple[Array, Array, Array]:
        """See ``Parts``; gradients are float32."""
        queries, keys, values, lengths, out, lse = attended
        blocks = self._blocks(queries, keys, lengths, causal=causal)
        pieces = blocks.pieces(self.scores)
        if pieces > 1:
            return _one_after_the_other(
                lambda arrays: self.backward(*arrays, causal=causal), (attended, gradient), pieces
            )
        delta = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), -1, keepdims=True)
        query_blocks, gradient_blocks, delta_blocks = map(blocks.rows, (queries, gradient, delta))
        # Keys come first in a block of scores: two of the three products that read it then take it as it lies.
        lse_blocks = blocks.rows(lse.swapaxes(1, 2)[..., None]).swapaxes(-1, -2)
        delta_blocks = delta_blocks.swapaxes(-1, -2)
        key_blocks, value_blocks = map(blocks.columns, (keys, values))
        scale, dtype = blocks.scale, queries.dtype

        def column(d_queries: Array, block: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            j, k, v = block

            def row(
                i: Array, state: tuple[Array, Array, Array], *, masked: bool
            ) -> tuple[Array, Array, Array]:
                d_queries, d_k, d_v = state
                q, d_out = query_blocks[i], gradient_blocks[i]
                scores = blocks.scores(q, k, i, j, masked=masked, keys_first=True)
                weights = jnp.exp(scores * scale - lse_blocks[i])
                d_v += einsum_float32("nksq,nkqd->nksd", weights.astype(dtype), d_out)
                d_weights = einsum_float32("nksd,nkqd->nksq", v, d_out)
                d_scores = (weights * (d_weights - delta_blocks[i]) * scale).astype(dtype)
                d_k += einsum_float32("nksq,nkqd->nksd", d_scores, q)
                d_q = d_queries[i] + einsum_float32("nksq,nksd->nkqd", d_scores, k)
                return jax.lax.dynamic_update_index_in_dim(d_queries, d_q, i, 0), d_k, d_v

            zeros = jnp.zeros(k.shape, jnp.float32)
            first, whole = blocks.rows_of(j)
            state = jax.lax.fori_loop(
                first, whole, functools.partial(row, masked=True), (d_queries, zeros, zeros)
            )
            d_queries, d_k, d_v = jax.lax.fori_loop(
                whole, blocks.row_count, functools.partial(row, masked=False), state
            )
            return d_queries, (d_k, d_v)

        d_queries, (d_keys, d_values) = jax.lax.scan(
            column,
            jnp.zeros(query_blocks.shape, jnp.float32),
            (jnp.arange(blocks.column_count), key_blocks, value_blocks),
        )
        return blocks.from_rows(d_queries), blocks.from_columns(d_keys), blocks.from_columns(d_values)


CHUNKED = Chunked()
"""The kernel that runs everywhere, with its usual blocks."""


def _one_after_the_other(function: Callable[[Arrays], Results], arrays: Arrays, pieces: int) -> Results:
    """``function`` on a tree of arrays [N, ...], ``pieces`` equal parts of N in turn."""
    cut = jax.tree.map(lambda x: x.reshape(pieces, -1, *x.shape[1:]), arrays)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), jax.lax.map(function, cut))


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
    def of(
        cls,
        queries: Array,
        keys: Array,
        lengths: Array | None,
        row_size: int,
        column_size: int,
        *,
        causal: bool,
    ) -> _Blocks:
        """row_size, column_size: the most tokens of a block."""

        def cut(length: int, most: int) -> tuple[int, int]:
            count = max(1, math.ceil(length / most))
            return count, math.ceil(length / count)

        if lengths is None:
            lengths = jnp.full(keys.shape[0], keys.shape[1])
        rows, columns = cut(queries.shape[1], row_size), cut(keys.shape[1], column_size)
        return cls(queries.shape, keys.shape, lengths, *rows, *columns, causal=causal)

    def pieces(self, most: int) -> int:
        """In how many equal parts the batch is to be computed so that a block has at most ``most`` scores, or is one
        sequence's. Where devices share the batch it stays whole: none would have work of its own in every part."""
        batch, _, heads, _ = self.queries
        if group_ways() > 1:
            return 1
        together = max(1, most // (heads * self.row_size * self.column_size))
        return min(
            pieces for pieces in range(1, batch + 1) if batch % pieces == 0 and batch // pieces <= together
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

    def columns_of(self, row: Array) -> tuple[Array, Array]:
        """The column blocks of row block ``row``: so many are seen whole, and those up to the second number in part."""
        if self.causal:
            first, end = row * self.row_size, (row + 1) * self.row_size
            return (first + 1) // self.column_size, jnp.minimum(
                -(-end // self.column_size), self.column_count
            )
        # One block at least, so that no sum is empty.
        last = jnp.maximum(-(-self.lengths.max() // self.column_size), 1)
        return jnp.minimum(self.lengths.min() // self.column_size, last), last

    def rows_of(self, column: Array) -> tuple[Array, Array]:
        """The row blocks of column block ``column``: from the first number on they see it in part, from the second on
        whole; ``row_count`` where none does."""
        first, end = column * self.column_size, (column + 1) * self.column_size
        if self.causal:
            whole = jnp.minimum(-(-(end - 1) // self.row_size), self.row_count)
            return jnp.minimum(first // self.row_size, whole), whole
        seen, whole = first < self.lengths.max(), end <= self.lengths.min()
        return jnp.where(seen, 0, self.row_count), jnp.where(whole, 0, self.row_count)

    def scores(
        self,
        queries: Array,
        keys: Array,
        row: Array,
        column: Array,
        *,
        masked: bool,
        keys_first: bool = False,
    ) -> Array:
        """Scores [N, K, (H / K) * row_size, column_size] of a block, MASKED where nothing is seen.

        They are not scaled yet: that would be a pass of its own in front of the maximum, and in front of the
        exponential it is free. masked: not needed where the block is seen whole, which saves another. keys_first: the
        last two axes are swapped.
        """
        equation, at = ("nksd,nkqd->nksq", (3, 2)) if keys_first else ("nkqd,nksd->nkqs", (2, 3))
        operands = (keys, queries) if keys_first else (queries, keys)
        scores = einsum_float32(equation, *operands)
        if not masked:
            return scores

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
