"""Attention of one new token of each caption, the group being a batch axis of the queries only; and how the caches of
captions lie: one row for each key head of each caption, heads in parts first.

Groups, captions and heads are one axis, which a product takes as it is. Devices along ``tensor`` have a part of the
heads each, so the parts are outermost there: [parts, B, G, K / parts], flat.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.kernels.attention.kernel import Cached
from vcap_jax.kernels.attention.scores import MASKED, group_heads, scores
from vcap_jax.kernels.matmul import einsum_float32

Array = jax.Array


def decode(queries: Array, prompt: Cached, captions: Cached) -> Array:
    """One new token of each of the G captions of each group.

    All G captions and the R = H / K heads of a key head meet a prompt's keys, and its values, in one matrix product
    with G R rows: they are read once per group. Keys lie with the token axis last, values with it second to last, the
    order in which products take them without a transposition.

    queries: [B, G, H, d].
    prompt: keys [B, K, d, P], values [B, K, P, d].
    captions: keys [B G K, d, T], values [B G K, T, d], rows as above; one column at least is visible.
    Returns [B, G, H, d].
    """
    batch, group, _, dim = queries.shape
    key_heads = prompt.keys.shape[1]
    grouped = group_heads(queries, key_heads)  # [B, G, K, R, d]
    heads = grouped.shape[3]

    def together(x: Array) -> Array:
        """[B, G, K, R, n] -> [B, K, G R, n]."""
        return jnp.swapaxes(x, 1, 2).reshape(batch, key_heads, group * heads, -1)

    to_prompt = scores("bkxd,bkdp->bkxp", together(grouped), prompt.keys)
    to_prompt = jnp.where(prompt.seen.visible[:, None, None], to_prompt, MASKED)
    parts = captions.parts
    to_self = scores("zrd,zdt->zrt", rows_of(grouped, parts), captions.keys)
    to_self = heads_of(to_self, batch, group, parts)  # [B, G, K, R, T]
    to_self = jnp.where(captions.seen.visible[:, None, None, None], to_self, MASKED)
    # One softmax over both, without the copies that joining them would cost: a common maximum and a common sum.
    largest = jnp.maximum(to_prompt.max(-1, keepdims=True), together(to_self.max(-1, keepdims=True)))
    apart = jnp.swapaxes(largest.reshape(batch, key_heads, group, heads, 1), 1, 2)
    to_prompt, to_self = jnp.exp(to_prompt - largest), jnp.exp(to_self - apart)
    total = to_prompt.sum(-1, keepdims=True) + together(to_self.sum(-1, keepdims=True))

    def weigh(equation: str, weights: Array, values: Array) -> Array:
        return einsum_float32(equation, weights.astype(values.dtype), values)

    out = weigh("bkxp,bkpd->bkxd", to_prompt, prompt.values)
    own = weigh("zrt,ztd->zrd", rows_of(to_self, parts), captions.values)
    out += together(heads_of(own, batch, group, parts))
    out = (out / total).astype(queries.dtype).reshape(batch, key_heads, group, heads, dim)
    return jnp.swapaxes(out, 1, 2).reshape(queries.shape)


def rows_of(x: Array, parts: int) -> Array:
    """[B, G, K, ...] -> [parts B G K / parts, ...]."""
    if parts > 1:
        x = jnp.moveaxis(x.reshape(*x.shape[:2], parts, -1, *x.shape[3:]), 2, 0)
        return x.reshape(-1, *x.shape[4:])
    return x.reshape(-1, *x.shape[3:])


def heads_of(rows: Array, groups: int, captions: int, parts: int) -> Array:
    """[parts B G K / parts, ...] -> [B, G, K, ...]."""
    if parts > 1:
        x = jnp.moveaxis(rows.reshape(parts, groups, captions, -1, *rows.shape[1:]), 0, 2)
        return x.reshape(groups, captions, -1, *rows.shape[1:])
    return rows.reshape(groups, captions, -1, *rows.shape[1:])


def for_devices(rows: Array, groups: int, captions: int, parts: int, wanted: int) -> Array:
    """[parts B G K / parts, ...] -> [wanted, B, G, K / wanted, ...]: a part for each device along ``tensor``."""
    if parts == wanted:
        return rows.reshape(parts, groups, captions, -1, *rows.shape[1:])
    heads = heads_of(rows, groups, captions, parts)
    return jnp.moveaxis(heads.reshape(groups, captions, wanted, -1, *heads.shape[3:]), 2, 0)
