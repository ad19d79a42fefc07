"""Arrays that wait in the host's memory: the same numbers, cut as they are on the devices, in another kind of memory.

Nothing here is compiled and nothing is sent between devices or processes: each device's part goes to the pinned memory
of its own host and back, by copies that run beside what the devices compute. A copy is begun and not waited for. What
it is made from may be freed at once: a device keeps the numbers until the copy has them.

A kind of memory is part of an array's sharding. Where a device has none of that kind, JAX raises. Only the devices of
ahead-of-time compilation, which are not there, list no memories at all; a plan therefore counts (``vcap_jax.plan``)
and places nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import jax
from jax.sharding import SingleDeviceSharding

Tree = TypeVar("Tree")
"""A pytree of JAX arrays."""

HOST = "pinned_host"
"""What JAX calls the host's memory that devices copy to and from by themselves."""


def has_host_memory(device: jax.Device) -> bool:
    """Whether arrays of the device can wait in its host's memory."""
    return any(memory.kind == HOST for memory in device.addressable_memories())


def to_host(tree: Tree) -> Tree:
    """A copy in the host's memory; what lies there is not copied. The tree itself stays as it is.

    Raises ValueError for devices that have no such memory.
    """
    return _copied(tree, HOST)


def to_devices(tree: Tree) -> Tree:
    """A copy where arrays of its devices lie by default, with the shardings they had there; what lies there is not
    copied."""
    return _copied(tree, None)


@contextmanager
def on_devices(tree: Tree) -> Iterator[Tree]:
    """The tree as ``to_devices`` gives it; what was copied for it is freed in the end, as soon as the programs that
    were called with it are done."""
    there = to_devices(tree)
    try:
        yield there
    finally:
        free(there, keep=jax.tree.leaves(tree))


def free(tree: object, keep: Iterable[jax.Array] = ()) -> None:
    """Gives up the arrays of the tree, whoever else holds them: nobody may use them again. Programs and copies that
    were begun with them end first.

    keep: arrays that are not given up.
    """
    kept = {id(array) for array in keep}
    for array in jax.tree.leaves(tree):
        if id(array) not in kept:
            array.delete()


def sent(tree: Tree, keep: Iterable[jax.Array] = ()) -> Tree:
    """The tree in the host's memory, and given up on the devices. keep: arrays that stay there, and in the result."""
    kept = {id(array) for array in keep}
    leaves, structure = jax.tree.flatten(tree)
    moving = [array for array in leaves if id(array) not in kept and array.sharding.memory_kind != HOST]
    there = dict(zip(map(id, moving), to_host(moving), strict=True))
    moved = jax.tree.unflatten(structure, [there.get(id(array), array) for array in leaves])
    free(moving)
    return moved


def _copied(tree: Tree, kind: str | None) -> Tree:
    """kind: None for the devices' default."""
    leaves, structure = jax.tree.flatten(tree)
    wanted = [kind or next(iter(x.sharding.addressable_devices)).default_memory().kind for x in leaves]
    moving = [i for i, x in enumerate(leaves) if x.sharding.memory_kind != wanted[i]]
    if not moving:
        return tree
    shards = [(i, shard) for i in moving for shard in leaves[i].addressable_shards]
    copies = jax.device_put(
        [shard.data for _, shard in shards],
        [SingleDeviceSharding(shard.device, memory_kind=wanted[i]) for i, shard in shards],
    )
    parts: dict[int, list[jax.Array]] = {i: [] for i in moving}
    for (i, _), copy in zip(shards, copies, strict=True):
        parts[i].append(copy)
    for i, of_array in parts.items():
        x = leaves[i]
        leaves[i] = jax.make_array_from_single_device_arrays(
            x.shape, x.sharding.with_memory_kind(wanted[i]), of_array
        )
    return jax.tree.unflatten(structure, leaves)
