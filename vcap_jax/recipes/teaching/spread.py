"""Batches divided among the devices: on a CPU, a device for each core.

A step's products are small, so cores do better with rows of their own than with parts of one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = TypeVar("Tree")


class Spread:
    """Puts batches and parameters on devices. devices: all of them by default."""

    def __init__(self, devices: Sequence[jax.Device] | None = None) -> None:
        self._devices = list(jax.devices() if devices is None else devices)

    def batch(self, tree: Tree) -> Tree:
        """A batch, divided along the first axis of its arrays.

        Where some array's rows cannot be divided evenly, every device has the whole and does the whole work.
        """
        if any(len(leaf) % len(self._devices) for leaf in jax.tree.leaves(tree)):
            return self.whole(tree)
        return jax.device_put(tree, self._sharding(PartitionSpec("rows")))

    def whole(self, tree: Tree) -> Tree:
        """The same on every device."""
        return jax.device_put(tree, self._sharding(PartitionSpec()))

    def alone(self, tree: Tree) -> Tree:
        """Brought to one device."""
        return jax.device_put(tree, self._devices[0])

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(Mesh(np.array(self._devices), ("rows",)), spec)
