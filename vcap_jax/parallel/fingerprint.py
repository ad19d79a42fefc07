"""A fingerprint of parameters: which weights wrote a pool, whatever folder they lie in and mesh they are cut over."""

from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp

from vcap_jax.parallel.sharding import Tree, dotted_path

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


@jax.jit
def _sums(tree: Tree) -> Tree:
    def of(leaf: jax.Array) -> jax.Array:
        words = jax.lax.bitcast_convert_type(leaf, _WORDS[leaf.dtype.itemsize]).astype(jnp.uint32)
        # A bijective mix of each word with its place, then a sum modulo 2**32: its order does not matter, so
        # every mesh gives the same.
        place = jnp.zeros(words.shape, jnp.uint32)
        for axis, size in enumerate(words.shape):
            place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        mixed = (words ^ (words >> 16)) * (2 * place + jnp.uint32(0x9E3779B1))
        return jnp.sum(mixed ^ (mixed >> 15), dtype=jnp.uint32)

    return jax.tree.map(of, tree)


def fingerprint(*trees: object) -> str:
    """16 hexadecimal digits of parameter trees: names, shapes, types and every bit of the values."""
    whole = hashlib.blake2b(digest_size=8)
    for tree in trees:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        sums = jax.tree.leaves(jax.device_get(_sums(tree)))
        for (path, leaf), value in zip(leaves, sums, strict=True):
            whole.update(f"{dotted_path(path)} {leaf.shape} {leaf.dtype} {int(value)}\n".encode())
    return whole.hexdigest()
