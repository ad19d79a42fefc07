"""What decoding keeps from call to call, and how parts of it are taken out and put back.

Of captions only the columns that are there are looked at, and only those that have not ended. Where devices along
``tensor`` have a part of the caches each, all of this is done to every part alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from vcap_jax.models.family import CaptionState, Decoder, PromptState
from vcap_jax.parallel.group_sharding import cut_by_tensor

Array = jax.Array
Columns = TypeVar("Columns")
"""Of captions: a pytree of arrays."""

DATA_AXIS = "data"
"""The mesh axis whose devices have slots of their own."""


class Written(NamedTuple):
    """What is written of captions, token by token, see ``DecodeState``."""

    tokens: Array
    logprobs: Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Everything a decode call reads and writes. B slots of all replicas; every array has them on its first axis.

    tokens: [B, G, W] int32, the captions so far, padded with the first end token. W: ``DecodePrograms.columns`` of the
        largest width that calls look at.
    lengths: [B, G] int32, tokens written, the end token included.
    done: [B, G] bool: ended with an end token. An empty slot is done.
    steps: [B] int32, the next token's place in the captions of the slot.
    logits: [B, G, V] float32, what token ``steps`` is drawn from.
    keys: [B, G] random keys, one per candidate.
    seen: [B, G, V] bool for the repetition penalty, or None when the penalty is 1.
    prompt, captions: what decoding keeps of the prompts, shared by all candidates, and of the captions, in W columns.
    suffixes: [B, G, S] int32, how the prompt goes on for each candidate, -1 beyond; None where prompts are whole. A
        suffix is fed token by token as if it had been drawn, and counts in ``tokens``, ``lengths`` and ``steps``.
    logprobs: [B, G, W] float32 of ``tokens``, see ``sampling.drawn_logprobs``; without meaning beyond ``lengths``. None
        where nobody reads them.
    """

    tokens: Array
    lengths: Array
    done: Array
    steps: Array
    logits: Array
    keys: Array
    seen: Array | None
    prompt: PromptState
    captions: CaptionState
    suffixes: Array | None = None
    logprobs: Array | None = None

    @property
    def written(self) -> Written:
        return Written(self.tokens, self.logprobs)


def tensor_axes(state: DecodeState, model: Decoder) -> DecodeState:
    """A pytree like ``state`` of int, see ``Decoder.tensor_axes``."""
    whole = jax.tree.map(lambda _: -1, state)
    rows = 0 if state.captions.parts > 1 else -1
    columns = jax.tree.map(lambda _: rows, state.captions.columns)
    return replace(
        whole, prompt=model.tensor_axes(state.prompt), captions=replace(whole.captions, columns=columns)
    )


def cut_over_tensor(state: DecodeState, model: Decoder) -> DecodeState:
    """``state`` of a replica as it lies on the devices of ``tensor``, the same behind every program."""

    def of(x: Array, axis: int) -> Array:
        return cut_by_tensor(x, axis if axis >= 0 else None)

    return jax.tree.map(of, state, tensor_axes(state, model))


def place(old: Array, new: Array, *, slots: Array) -> Array:
    """Rows of ``new`` in the slots of ``old``; a slot of -1 is none. What a row is shorter by is zeros, as in
    ``Decoder.empty``."""
    if new.shape[1:] != old.shape[1:]:
        missing = [(0, there - here) for there, here in zip(old.shape[1:], new.shape[1:], strict=True)]
        new = jnp.pad(new, [(0, 0), *missing])
    if new.shape[0] == old.shape[0]:
        return jnp.where((slots >= 0).reshape(-1, *[1] * (old.ndim - 1)), new, old)
    (slot,) = slots
    here = jnp.maximum(slot, 0)
    kept = jax.lax.dynamic_index_in_dim(old, here, 0)
    return jax.lax.dynamic_update_index_in_dim(old, jnp.where(slot >= 0, new, kept), here, 0)


def of_each_part(function: Callable[..., Array], *arrays: Array, parts: int) -> Array:
    """``function`` of the rows of each part of caption columns [parts n, ...], see ``CaptionState``."""
    if parts == 1:
        return function(*arrays)
    apart = (x.reshape(parts, -1, *x.shape[1:]) for x in arrays)
    found = jax.vmap(function)(*apart)
    return found.reshape(-1, *found.shape[2:])


def part_of(state: DecodeState, slots: Array, candidates: Array, *, everything: bool) -> DecodeState:
    """The chosen slots and candidates. Columns of what is written stay, and those of caches are for ``narrowed``."""
    if everything:
        return state
    whole_slots = slots.shape[0] == state.done.shape[0]
    whole_groups = candidates.shape[1] == state.done.shape[1]

    def of_slots(x: Array) -> Array:
        return x if whole_slots else x[slots]

    def of_candidates(x: Array) -> Array:
        return of_slots(x) if whole_groups else x[slots[:, None], candidates]

    def of_rows(x: Array) -> Array:
        """Rows of slot, candidate and head."""
        apart = x.reshape(*state.done.shape, -1, *x.shape[1:])
        return of_candidates(apart).reshape(-1, *x.shape[1:])

    by_part = partial(of_each_part, of_rows, parts=state.captions.parts)

    return DecodeState(
        tokens=state.tokens,
        lengths=of_candidates(state.lengths),
        done=of_candidates(state.done),
        steps=of_slots(state.steps),
        logits=of_candidates(state.logits),
        keys=of_candidates(state.keys),
        seen=None if state.seen is None else of_candidates(state.seen),
        prompt=jax.tree.map(of_slots, state.prompt),
        captions=replace(
            state.captions,
            columns=jax.tree.map(by_part, state.captions.columns),
            carried=jax.tree.map(of_candidates, state.captions.carried),
        ),
        suffixes=None if state.suffixes is None else of_candidates(state.suffixes),
        logprobs=state.logprobs,
    )


def narrowed(columns: Columns, axes: object, width: int, total: int) -> Columns:
    """The first ``width`` columns, and empty ones for new tokens, ``total`` together."""

    def of(x: Array, axis: int) -> Array:
        padding = [(0, total - width if i == axis else 0) for i in range(x.ndim)]
        return jnp.pad(jax.lax.slice_in_dim(x, 0, width, axis=axis), padding)

    return jax.tree.map(of, columns, axes)


def put_columns(
    stored: tuple[Written, Columns],
    new: tuple[Written, Columns],
    axes: object,
    slots: Array,
    candidates: Array,
    base: Array,
    parts: int,
) -> tuple[Written, Columns]:
    """New tokens and their caches [slots, candidates, ...] into their columns, ``base`` of each slot, in place.

    parts: of the caches, see ``CaptionState``. One slot after another, or one candidate after another if not all are
    there: a block each, where a scatter would go through every number.
    """
    held, size = stored[0].tokens.shape[:2]
    per_slot = candidates.shape[1]
    # A block: all candidates of a slot, or one.
    together = per_slot == size
    blocks = 1 if together else per_slot
    written, added = new

    def rows_of(x: Array) -> Array:
        return x.reshape(-1, x.shape[-1])

    def one(k: Array, stored: tuple[Written, Columns]) -> tuple[Written, Columns]:
        slot = k // blocks
        candidate = jnp.int32(0) if together else candidates[slot, k % blocks]
        first = slots[slot] * size + candidate

        def put(x: Array, y: Array, axis: int) -> Array:
            # Rows of one candidate lie together: one, or one per head.
            rows, per_candidate = y.shape[0] // (slots.shape[0] * blocks), x.shape[0] // (held * size)
            block = jax.lax.dynamic_slice_in_dim(y, k * rows, rows, axis=0)
            start = [jnp.int32(0)] * x.ndim
            start[0], start[axis] = first * per_candidate, base[slot]
            return jax.lax.dynamic_update_slice(x, block, start)

        def put_in_parts(x: Array, y: Array, axis: int) -> Array:
            return of_each_part(partial(put, axis=axis), x, y, parts=parts)

        said = jax.tree.map(lambda x, y: put(rows_of(x), rows_of(y), 1).reshape(x.shape), stored[0], written)
        return said, jax.tree.map(put_in_parts, stored[1], added, axes)

    return jax.lax.fori_loop(0, slots.shape[0] * blocks, one, stored)
