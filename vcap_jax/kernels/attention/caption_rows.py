"""How the caches of captions lie: one row for each key head of each caption, heads in parts first.

Groups, captions and heads are one axis, which a product takes as it is. Devices along ``tensor`` have a part of the
heads each, so the parts are outermost there: [parts, B, G, K / parts], flat.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array


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
