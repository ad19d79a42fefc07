"""Attention of new tokens in parts: over the prompt, read once for a group, and over each caption's own tokens.

A kernel (``hopper``, ``tpu``) computes softmaxes of some rows over keys that they share, in a number of splits that
run beside each other, and keeps the scores where they are made. Here rows are arranged for it, and the parts of each
row's softmax joined by their log-sum-exps. Nothing of a result depends on what else is in the batch, nor on how wide
the caches are: splits are cut by a row's own number of keys.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from vcap_jax.kernels.attention.decode import for_devices
from vcap_jax.kernels.attention.kernel import Cached
from vcap_jax.kernels.attention.per_device import Division
from vcap_jax.kernels.attention.scores import MASKED, group_heads

Array = jax.Array


class Rows(NamedTuple):
    """X rows of queries for each of N K sets of keys.

    queries: [N, K, X, d]; keys: [N, K, d, T]; values: [N, K, T, d]. early, late: [N] int32: columns [0, early) and
    [start, start + late) are seen.
    """

    queries: Array
    keys: Array
    values: Array
    early: Array
    late: Array
    start: int


class Part(NamedTuple):
    """Softmaxes over S splits of the keys.

    out: [N, K, S, X, d] float32, each normalised in itself. lse: [N, K, S, X] float32, natural log-sum-exp of the
    scaled scores, ``scores.MASKED`` of a split without keys, whose ``out`` may be anything.
    """

    out: Array
    lse: Array


class KeyParts(Protocol):
    """A kernel for ``Rows``: reads only blocks of keys that are seen. A value, as ``Kernel`` is."""

    def prompt(self, rows: Rows) -> Part:
        """Rows of a group's captions over its prompt: many rows, many keys, ``late`` is 0."""

    def captions(self, rows: Rows) -> Part:
        """Rows of a caption over its own tokens: few rows, keys of two ranges."""


def decode_in_parts(kernel: KeyParts, queries: Array, prompt: Cached, captions: Cached) -> Array:
    """See ``attention.decode``. Captions that see nothing of themselves have ended; a group of such reads no prompt."""
    (batch, group, _, _), key_heads = queries.shape, prompt.keys.shape[1]
    division = Division.of(batch, key_heads)

    def divided(x: Array) -> Array:
        return for_devices(x, batch, group, captions.parts, division.head_parts)

    def run(
        q: Array,
        prompt_keys: Array,
        prompt_values: Array,
        lengths: Array,
        keys: Array,
        values: Array,
        early: Array,
        late: Array,
    ) -> Array:
        heads = group_heads(q, prompt_keys.shape[1])  # [B, G, K, R, d]
        going = ((early + late) > 0).any(1)
        of_prompt = Rows(
            _together(heads),
            prompt_keys,
            prompt_values,
            jnp.where(going, lengths, 0),
            jnp.zeros_like(lengths),
            0,
        )
        own = Rows(
            _by_caption(heads),
            _by_caption(keys[0]),
            _by_caption(values[0]),
            early.reshape(-1),
            late.reshape(-1),
            captions.seen.start,
        )
        out = _joined(kernel.prompt(of_prompt), kernel.captions(own), heads.shape)
        return out.astype(q.dtype).reshape(q.shape)

    by_batch, of_prompt, of_queries = division.by_batch, division.heads_second, division.heads_third
    of_captions = division.parts_first
    inputs = (of_queries, of_prompt, of_prompt, by_batch, of_captions, of_captions, by_batch, by_batch)
    return division.run(run, inputs, of_queries)(
        *(queries, prompt.keys, prompt.values, prompt.seen.early),
        *map(divided, (captions.keys, captions.values)),
        *(captions.seen.early, captions.seen.late),
    )


def _together(heads: Array) -> Array:
    """[B, G, K, R, d] -> [B, K, G R, d]."""
    batch, group, key_heads, rows, dim = heads.shape
    return jnp.swapaxes(heads, 1, 2).reshape(batch, key_heads, group * rows, dim)


def _by_caption(x: Array) -> Array:
    """[B, G, ...] -> [B G, ...]."""
    return x.reshape(-1, *x.shape[2:])


def _joined(prompt: Part, own: Part, shape: tuple[int, ...]) -> Array:
    """One softmax of all parts, [B, G, K, R, d] as ``shape`` says, float32.

    Split by split, and with nothing in it that is smaller than the output: XLA then makes one kernel of it. Each takes
    as long to start as to run, and of a reduction, or of weights that several numbers share, it makes up to three more.
    """
    batch, group, _, rows, _ = shape

    def of_prompt(x: Array) -> list[Array]:
        """[B, K, S, G R, n] -> S of [B, G, K, R, n]."""
        apart = x.reshape(*x.shape[:3], group, rows, x.shape[-1])
        return [jnp.moveaxis(apart[:, :, split], 2, 1) for split in range(x.shape[2])]

    def of_captions(x: Array) -> list[Array]:
        """[B G, K, S, R, n] -> S of [B, G, K, R, n]."""
        apart = x.reshape(batch, group, *x.shape[1:])
        return [apart[:, :, :, split] for split in range(x.shape[2])]

    lses = of_prompt(prompt.lse[..., None]) + of_captions(own.lse[..., None])
    parts = of_prompt(prompt.out) + of_captions(own.out)
    # A broadcast would be moved behind the exponential.
    sums = [jnp.where(lse > MASKED, lse + 0 * part, MASKED) for lse, part in zip(lses, parts, strict=True)]
    parts = [jnp.where(lse > MASKED, part, 0) for lse, part in zip(sums, parts, strict=True)]
    largest = functools.reduce(jnp.maximum, sums)
    weights = [jnp.exp(lse - largest) for lse in sums]
    # Each product is added to a sum, the first to zero: of a sum of two products a compiler may round either, and which
    # would depend on how many splits there are, and so on how wide the caches are.
    products = (part * weight for part, weight in zip(parts, weights, strict=True))
    out = functools.reduce(jnp.add, products, 0 * parts[0])
    return out / functools.reduce(jnp.add, weights)
