"""Groups whose captions outgrow the short caches wait on the host, with everything that decoding goes on from.

One array after another is cut out of the devices' state and brought to the host, so that no second copy of a group lies
on a device. Numbers are carried over as they are: a group goes on as if it had never waited.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from vcap_jax.rollout.decode_state import DATA_AXIS, DecodeState, of_each_part, place

Array = jax.Array


Parked: TypeAlias = Sequence[np.ndarray]
"""What a state holds of one slot, of its arrays in their order; keys as plain numbers."""


@functools.cache
def parking_on(mesh: Mesh) -> Parking:
    """The one of a mesh, so that its programs are compiled once."""
    return Parking(mesh)


class Parking:
    """Moves groups between slots and the host. mesh: the programs' own, (data, tensor)."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh, self._replicas = mesh, mesh.shape[DATA_AXIS]
        own = Spec(DATA_AXIS)
        axes = {DATA_AXIS} if mesh.shape["tensor"] > 1 else set(mesh.axis_names)
        on_replicas = partial(jax.shard_map, mesh=mesh, out_specs=own, axis_names=axes, check_vma=False)

        def cut(x: Array, slot: Array, slots: int, parts: int) -> Array:
            """Rows of one slot of each replica; of slot 0 where there is none to take."""

            def of_part(x: Array, slot: Array) -> Array:
                here = jnp.maximum(slot[0], 0)
                return jax.lax.dynamic_index_in_dim(_by_slot(x, slots), here, keepdims=False)

            return on_replicas(
                lambda x, slot: of_each_part(partial(of_part, slot=slot), x, parts=parts), in_specs=(own, own)
            )(x, slot)

        def put(x: Array, new: Array, slot: Array, slots: int, parts: int, lies: Spec) -> Array:
            """``new`` in one slot of each replica; none in -1. lies: how ``x`` is cut, and stays."""

            def of_part(x: Array, new: Array, slot: Array) -> Array:
                return place(_by_slot(x, slots), new[None], slots=slot).reshape(x.shape)

            placed = on_replicas(
                lambda x, new, slot: of_each_part(partial(of_part, slot=slot), x, new, parts=parts),
                in_specs=(own, own, own),
            )(x, new, slot)
            return jax.lax.with_sharding_constraint(placed, NamedSharding(mesh, lies))

        self._cut = jax.jit(cut, static_argnums=(2, 3))
        self._put = jax.jit(put, static_argnums=(3, 4, 5), donate_argnums=0)

    def take(self, state: DecodeState, slots: Sequence[int | None]) -> list[Parked | None]:
        """What the slots hold, one of each replica or None. The state stays as it is."""
        each = self._slots_of(state)
        chosen = self._numbers(slots)
        found: list[list[np.ndarray]] = [[] for _ in slots]
        plain = _plain(state)
        for leaf, parts in zip(jax.tree.leaves(plain), _parts(plain), strict=True):
            # Its rows of all replicas, on the host before the next array's are cut out.
            rows = np.asarray(jax.device_get(self._cut(leaf, chosen, each, parts)))
            for replica, part in enumerate(np.split(rows, self._replicas)):
                if slots[replica] is not None:
                    found[replica].append(part.copy())
        return [None if slot is None else parts for slot, parts in zip(slots, found, strict=True)]

    def give(self, state: DecodeState, slots: Sequence[int | None], parked: Sequence[Parked]) -> DecodeState:
        """The state with parked groups in slots, one of each replica or None; ``parked`` in the order of those that
        are not None. The state is given up. Its caches may have more columns than those that the groups come from."""
        each, chosen = self._slots_of(state), self._numbers(slots)
        plain = _plain(state)
        leaves, structure = jax.tree.flatten(plain)
        by_replica = NamedSharding(self._mesh, Spec(DATA_AXIS))
        placed = []
        for number, (leaf, parts) in enumerate(zip(leaves, _parts(plain), strict=True)):
            waiting = iter(parked)
            nothing = np.zeros_like(parked[0][number])
            rows = [nothing if slot is None else next(waiting)[number] for slot in slots]
            new = jax.device_put(np.concatenate(rows), by_replica)
            placed.append(self._put(leaf, new, chosen, each, parts, _lies(leaf)))
        return _with_keys(jax.tree.unflatten(structure, placed))

    def end(self, state: DecodeState, slots: Sequence[int | None]) -> DecodeState:
        """The state with every caption of these slots ended, so that no call goes on with them."""
        each = self._slots_of(state)
        ended = np.ones((self._replicas, *state.done.shape[1:]), bool)
        new = jax.device_put(ended, NamedSharding(self._mesh, Spec(DATA_AXIS)))
        done = self._put(state.done, new, self._numbers(slots), each, 1, _lies(state.done))
        return replace(state, done=done)

    def _slots_of(self, state: DecodeState) -> int:
        """Of a replica."""
        return int(state.steps.shape[0]) // self._replicas

    def _numbers(self, slots: Sequence[int | None]) -> Array:
        numbers = np.array([-1 if slot is None else slot for slot in slots], np.int32)
        return jax.device_put(numbers, NamedSharding(self._mesh, Spec(DATA_AXIS)))


def _by_slot(x: Array, slots: int) -> Array:
    """[slots * n, ...] as [slots, n, ...]: some arrays have several rows for each slot."""
    return x.reshape(slots, x.shape[0] // slots, *x.shape[1:])


def _parts(state: DecodeState) -> list[int]:
    """Of each array, see ``CaptionState``; 1 of all but the columns of captions."""
    ones = jax.tree.map(lambda _: 1, state)
    columns = jax.tree.map(lambda _: state.captions.parts, state.captions.columns)
    parts = replace(ones, captions=replace(ones.captions, columns=columns))
    return [int(x) for x in jax.tree.leaves(parts)]


def _lies(x: Array) -> Spec:
    if not isinstance(x.sharding, NamedSharding):
        raise TypeError(f"an array of the state lies by {x.sharding}, not on the sampler's mesh")
    return x.sharding.spec


def _plain(state: DecodeState) -> DecodeState:
    """With the keys as the numbers that they are made of."""
    return replace(state, keys=jax.random.key_data(state.keys))


def _with_keys(state: DecodeState) -> DecodeState:
    return replace(state, keys=jax.random.wrap_key_data(state.keys, impl="threefry2x32"))
