"""A kernel that XLA cannot cut runs on every device of the mesh with its own part of batch and key heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
from jax.sharding import PartitionSpec as Spec

from vcap_jax.parallel.group_sharding import NOT_OF_GROUPS, group_axes

Result = TypeVar("Result")


def head_parts(key_heads: int) -> int:
    """In how many parts the mesh around the caller cuts so many key heads: 1 where its devices do not divide them."""
    parts = jax.sharding.get_abstract_mesh().shape.get(NOT_OF_GROUPS, 1)
    return parts if key_heads % parts == 0 else 1


@dataclass(frozen=True)
class Division:
    """How the surrounding mesh divides a kernel's work.

    batch, heads: the axes that the batch and the key heads are split over; None: every device has all of them.
    head_parts: in how many parts the heads are. free: the axes that are dealt with here; what a surrounding
    ``shard_map`` has split already is left as it is. Without any there is nothing to divide.
    """

    batch: tuple[str, ...] | None
    heads: str | None
    head_parts: int
    free: frozenset[str]

    @classmethod
    def of(cls, batch: int, key_heads: int) -> Division:
        """Of the mesh around the caller. A batch or heads that the devices do not divide stay whole."""
        mesh = jax.sharding.get_abstract_mesh()
        axes = group_axes(mesh)
        free = {*axes, NOT_OF_GROUPS}.intersection(mesh.axis_names) if mesh.size > 1 else set()
        if math.prod(mesh.shape[axis] for axis in free) == 1:
            return cls(None, None, 1, frozenset())
        parts = head_parts(key_heads)
        return cls(
            axes if batch % math.prod(mesh.shape[axis] for axis in axes) == 0 else None,
            NOT_OF_GROUPS if parts > 1 else None,
            parts,
            frozenset(free),
        )

    @property
    def by_batch(self) -> Spec:
        """Of [N, ...]."""
        return Spec(self.batch)

    @property
    def heads_second(self) -> Spec:
        """Of [N, H, ...]."""
        return Spec(self.batch, self.heads)

    @property
    def heads_third(self) -> Spec:
        """Of [N, S, H, ...]."""
        return Spec(self.batch, None, self.heads)

    @property
    def parts_first(self) -> Spec:
        """Of [``head_parts``, N, ...]."""
        return Spec(self.heads, self.batch)

    def run(
        self, function: Callable[..., Result], inputs: tuple[Spec, ...], outputs: tuple[Spec, ...] | Spec
    ) -> Callable[..., Result]:
        """``function`` of a device's part, of arguments that are divided as said."""
        if not self.free:
            return function
        return jax.shard_map(
            function, in_specs=inputs, out_specs=outputs, axis_names=set(self.free), check_vma=False
        )
