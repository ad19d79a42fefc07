"""Where arrays live: a mesh of devices, and the short table of rules that a model family gives for its parameters.

Groups of a batch are split over ``data`` and ``fsdp`` together. Parameters and optimizer state are split over
``fsdp`` (each device keeps a part and gathers a layer when it needs it, as the paper's ZeRO-3 does) and, for
models too wide for that, over ``tensor``; over ``data`` they are repeated. A parameter is a matrix in its last
two axes; an axis before those stacks layers and is scanned.

Widths of a transformer are powers of two, device counts need not be: six devices divide no matrix of 4,096 x 4,096.
So the mesh keeps the odd factor of ``fsdp`` on an axis of its own, ``odd`` (6 = 2 x 3), and a matrix that the whole
of ``fsdp`` does not divide is cut by the parts that do. What no matrix axis takes may cut the stack of layers:
at rest each device then holds some of the layers, and before a pass the stack is gathered over that axis. What is left
over is kept whole on every device of its axis. Both are exact but cost memory, so they are never silent: each is logged
once (``Partition.fallbacks``).
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jax.stages import Wrapped
from jax.tree_util import KeyPath, keystr
from jax.typing import DTypeLike
from jaxtyping import PyTree
from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.system.errors import VCapError

Tree = TypeVar("Tree")
"""A pytree: of arrays, NumPy or JAX, or of what stands for each, its shape or its sharding."""

COPIES = "data"
FSDP_AXES = ("fsdp", "odd")
GROUP_AXES = (COPIES, *FSDP_AXES)
AXES = (*GROUP_AXES, "tensor")

_SIZES = ("data", "fsdp", "tensor")
_ODD_FLAG = "xla_enable_hlo_sharding_v3"
"""From JAX 0.11 on XLA has a third way of writing down how arrays are split. With it XLA of 0.11.2 and of 0.12.0.1 ends
the process with a failed check where a mesh has an odd factor; with this flag false it keeps to the second way."""

logger = logging.getLogger(__name__)

_Size = Literal[-1] | Annotated[int, Field(ge=1)]


@settings
class MeshConfig:
    """Sizes of the mesh axes; one of them may be -1 and takes the devices that are left. Without a
    -1 they may name fewer devices than there are: the first."""

    data: _Size = 1
    """Copies of the model."""
    fsdp: _Size = -1
    """Parts that parameters and optimizer state are cut into."""
    tensor: _Size = 1
    """Parts that each matrix product is cut into, and the caches of captions by key heads, if it
    divides their number. Decoding then reads a part of the weights a token on each device."""

    def __post_init__(self) -> None:
        if len(rest := [f"mesh.{name}" for name in _SIZES if getattr(self, name) == -1]) > 1:
            raise ValueError(f"{' and '.join(rest)} are -1; only one may take the devices left over")

    def sizes(self, devices: int) -> tuple[int, int, int]:
        """(data, fsdp, tensor) with -1 resolved. Raises ValueError if that many devices do not fit."""
        sizes = (self.data, self.fsdp, self.tensor)
        fixed = math.prod(size for size in sizes if size != -1)
        if fixed > devices or (-1 in sizes and devices % fixed):
            raise ValueError(
                f"mesh data={self.data} fsdp={self.fsdp} tensor={self.tensor} does not fit "
                f"{devices} devices: the fixed sizes multiply to {fixed}"
            )
        data, fsdp, tensor = (devices // fixed if size == -1 else size for size in sizes)
        return data, fsdp, tensor


class NoDevices(VCapError, RuntimeError):
    """JAX cannot compute on what it is told to, or on what it finds; the message has its reason."""


def axis_sizes(config: MeshConfig, devices: int) -> dict[str, int]:
    """Size by axis of ``AXES``, in their order, of a mesh over that many devices. Raises ValueError if they do not
    fit."""
    data, fsdp, tensor = config.sizes(devices)
    even = fsdp & -fsdp  # the largest power of two that divides it
    return dict(zip(AXES, (data, even, fsdp // even, tensor), strict=True))


def _all_devices() -> list[jax.Device]:
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where a named platform has no plugin
        said = f" ({error})" if str(error) else ""
        raise NoDevices(
            f"JAX finds nothing to compute on{said}; JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS', 'not set')!r}. "
            "See that this environment's JAX is made for the devices and their driver (docs/gpu_node.md, docs/tpu.md) "
            "and that no other process holds them, or set JAX_PLATFORMS to what is there"
        ) from error


def flag_for_odd_meshes() -> str:
    """What XLA_FLAGS must have, before JAX is first asked to compute, where devices are cut into a number of parts that
    is no power of two; empty under a JAX that needs nothing."""
    return f"--{_ODD_FLAG}=false" if jax.__version_info__[:2] > (0, 10) else ""


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over ``devices`` (default: all of them), or over the first ones if the sizes name fewer.

    Raises ValueError if the sizes do not fit, or leave devices of another process without work, and for an odd factor
    where XLA_FLAGS lacks what it needs (``flag_for_odd_meshes``), NoDevices where JAX finds none.
    """
    devices = _all_devices() if devices is None else devices
    by_axis = axis_sizes(config, len(devices))
    if by_axis["odd"] > 1 and (flag := flag_for_odd_meshes()) not in os.environ.get("XLA_FLAGS", ""):
        raise ValueError(
            f"mesh.fsdp is {by_axis['fsdp'] * by_axis['odd']}, and where that is no power of two XLA of JAX "
            f"{jax.__version__} ends the process unless XLA_FLAGS has {flag}: export it, or set mesh.fsdp to a power "
            "of two"
        )
    sizes = tuple(by_axis.values())
    used = math.prod(sizes)
    if used < len(devices) and jax.process_count() > 1:
        raise ValueError(f"mesh {sizes} leaves {len(devices) - used} of {len(devices)} devices idle; use all")
    # GSPMD decides how intermediate results are split; the rules below only place what comes in.
    return jax.make_mesh(sizes, AXES, (AxisType.Auto,) * len(AXES), devices=devices[:used])


@dataclass(frozen=True)
class Rule:
    """How parameters whose dotted path matches ``pattern`` are split.

    tensor: axis cut by ``tensor``. fsdp: axes that ``fsdp`` may cut, the preferred first; one is used. Both
    count from the end; empty or None leaves the parameter whole.
    """

    pattern: str
    tensor: int | None = None
    fsdp: tuple[int, ...] = ()


@dataclass(frozen=True)
class Partition:
    """How one array is split. fallbacks: a sentence for every part of an axis that no matrix axis could take."""

    spec: Spec
    fallbacks: tuple[str, ...] = ()


def partition(
    path: str, shape: tuple[int, ...], sizes: Mapping[str, int], rules: Sequence[Rule]
) -> Partition:
    """The split of the parameter (or optimizer moment) at a dotted path. sizes: of the mesh axes; absent ones are 1.
    rules: the first whose pattern is found in the path holds.

    A path may have anything before the parameter's own (``opt_state.1.mu.text.norm.scale``). Paths no rule
    knows are cut by ``fsdp`` along the larger of their last two axes; scalars and vectors stay whole.
    """
    rule = next((rule for rule in rules if re.search(rule.pattern, path)), None)
    if rule is None:
        by_size = sorted((-2, -1), key=lambda axis: -shape[axis]) if len(shape) > 1 else []
        rule = Rule(path, fsdp=tuple(by_size))
    names: list[tuple[str, ...]] = [()] * len(shape)
    fallbacks = []
    if rule.tensor is not None and (tensor := sizes.get("tensor", 1)) > 1:
        if shape[rule.tensor] % tensor:
            fallbacks.append(
                f"{path} {shape}: tensor={tensor} does not divide {shape[rule.tensor]}; kept whole there"
            )
        else:
            names[rule.tensor] = ("tensor",)
    parts = tuple(axis for axis in FSDP_AXES if sizes.get(axis, 1) > 1) if rule.fsdp else ()
    free = [axis for axis in rule.fsdp if not names[axis]]
    tried = " or ".join(str(shape[axis]) for axis in free)
    # All of fsdp on one axis where possible, else part by part.
    whole = _fitting(free, shape, math.prod(sizes[part] for part in parts))
    if whole is not None:
        names[whole], parts = parts, ()
    for part in parts:
        fitting = _fitting(free, shape, sizes[part])
        if fitting is not None:
            names[fitting] = (part,)
            free.remove(fitting)
        elif len(shape) > 2 and not names[-3] and shape[-3] % sizes[part] == 0:
            names[-3] = (part,)
            fallbacks.append(
                f"{path} {shape}: {sizes[part]} devices do not divide {tried}; they share out the {shape[-3]} layers"
            )
        else:
            fallbacks.append(f"{path} {shape}: {sizes[part]} devices do not divide {tried}; kept whole there")
    return Partition(Spec(*map(_entry, names)), tuple(fallbacks))


def _fitting(axes: Sequence[int], shape: tuple[int, ...], size: int) -> int | None:
    return next((axis for axis in axes if shape[axis] % size == 0), None)


def _entry(names: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return names if len(names) > 1 else names[0] if names else None


def dotted_path(path: KeyPath[Hashable]) -> str:
    """A pytree path as ``text.layers.mlp.down.kernel``, without the ``value`` that nnx variables end in."""
    return keystr(path, simple=True, separator=".").removesuffix(".value")


def abstract(tree: Tree, shardings: Tree) -> Tree:
    """``tree`` as jax.ShapeDtypeStruct with these shardings."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree, shardings
    )


@dataclass(frozen=True)
class Placement:
    """Puts parameters, optimizer state and batches on the devices of a mesh.

    rules: of the family whose parameters are placed (``ModelFamily.partition_rules``); without any, parameters are cut
    by their size alone.
    """

    mesh: Mesh
    rules: tuple[Rule, ...] = ()
    _reported: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def build(
        cls, config: MeshConfig, devices: Sequence[jax.Device] | None = None, *, rules: Sequence[Rule] = ()
    ) -> Placement:
        """See ``make_mesh``."""
        return cls(make_mesh(config, devices), tuple(rules))

    def with_rules(self, rules: Sequence[Rule]) -> Placement:
        """The same devices for parameters of a family with these rules."""
        return self if self.rules == tuple(rules) else Placement(self.mesh, tuple(rules), self._reported)

    def parameter(self, path: str, shape: tuple[int, ...]) -> NamedSharding:
        """The sharding of one parameter; fits ``weights.fill(sharding=placement.parameter)``."""
        split = partition(path, shape, dict(self.mesh.shape), self.rules)
        for sentence in split.fallbacks:
            self._report(sentence)
        return NamedSharding(self.mesh, split.spec)

    def shardings(self, tree: Tree) -> Tree:
        """A pytree of NamedSharding like ``tree``: parameters or optimizer state, arrays or abstract."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: self.parameter(dotted_path(path), leaf.shape), tree
        )

    def abstract(self, tree: Tree) -> Tree:
        """``tree`` as jax.ShapeDtypeStruct with shardings, what a checkpoint is restored into."""
        return abstract(tree, self.shardings(tree))

    def state(self, tree: Tree) -> Tree:
        """``tree`` of parameters or optimizer state, on the devices."""
        return jax.device_put(tree, self.shardings(tree))

    def groups(self, count: int) -> NamedSharding:
        """The sharding of an array with ``count`` groups on its first axis.

        Groups are split over ``data`` and ``fsdp`` together, or over those axes of the mesh that divide their
        number into the most parts; if none does, every device computes all groups.
        """
        choices = [c for n in range(len(GROUP_AXES), 0, -1) for c in itertools.combinations(GROUP_AXES, n)]
        fitting = [c for c in choices if count % self._ways(c) == 0]
        axes = max(fitting, key=self._ways, default=())
        axes = tuple(axis for axis in axes if self.mesh.shape[axis] > 1)
        ways = self._ways(GROUP_AXES)
        if count % ways:
            self._report(
                f"{count} groups of a batch are not a multiple of the {ways} devices they could be split "
                "over; choose a group count per batch that is"
            )
        return NamedSharding(self.mesh, Spec(axes or None))

    def batch(self, tree: object) -> PyTree[jax.Array]:
        """``tree``, perhaps of NumPy arrays, on the devices, split by group: the first axis of every array.

        For the devices of one process; in a run of several, ``local`` gives the placement for it.
        """
        return jax.tree.map(self._put, tree)

    def local(self) -> Placement:
        """The placement on this process's own devices, where it works at its own pace: groups split over them,
        parameters whole (or cut by ``tensor``). With one process this is the placement itself.

        Raises ValueError if ``tensor`` joins devices of different processes: a group never spans processes.
        """
        if jax.process_count() == 1:
            return self
        rows = self.mesh.devices.reshape(-1, self.mesh.shape["tensor"])
        owners = [{device.process_index for device in row} for row in rows]
        if any(len(owner) > 1 for owner in owners):
            raise ValueError(
                f"mesh.tensor={self.mesh.shape['tensor']} joins devices of different processes, as they lie here: set "
                f"a smaller divisor of the {jax.local_device_count()} devices of one"
            )
        own = rows[[jax.process_index() in owner for owner in owners]]
        types = (AxisType.Auto,) * len(AXES)
        return Placement(Mesh(own.reshape(len(own), 1, 1, -1), AXES, axis_types=types), self.rules)

    def join(self, tree: Tree) -> Tree:
        """Batches of all processes as one: ``tree``, this process's groups split over its devices, becomes its part of
        arrays over the whole mesh. Nothing is copied or sent where the devices hold their rows already.
        """
        if jax.process_count() == 1:
            return tree
        local = self.local()
        return jax.tree.map(lambda x: self._join(local._put(x)), tree)

    def gathered(self, tree: Tree, types: object) -> Tree:
        """Parameters, placed on the whole mesh, for the ``local`` placement: whole on each of this process's devices,
        or cut by ``tensor``. All processes must call it at the same time. With one process this is ``tree`` itself.

        types: a tree like ``tree``, what its arrays are cast to before they are sent.
        """
        if jax.process_count() == 1:
            return tree
        local = self.local()
        return jax.tree.map(
            lambda x, sharding: jax.make_array_from_single_device_arrays(
                x.shape, sharding, [shard.data for shard in x.addressable_shards]
            ),
            self.gathering(tree, types, local)(tree),
            local.shardings(tree),
        )

    def gathering(self, tree: object, types: object, local: Placement) -> Wrapped:
        """The jitted program that ``gathered`` runs on ``tree`` (arrays or abstract): in ``types``, on the whole mesh
        cut as on ``local``."""
        here, there = self.shardings(tree), local.shardings(tree)
        everywhere = tuple(NamedSharding(self.mesh, sharding.spec) for sharding in jax.tree.leaves(there))
        structure = jax.tree.structure(tree)
        return _gathering(structure, tuple(jax.tree.leaves(types)), tuple(jax.tree.leaves(here)), everywhere)

    def replicated(self, tree: Tree) -> Tree:
        """``tree`` whole on every device: step totals, scalars. All processes must bring the same values."""
        sharding = NamedSharding(self.mesh, Spec())
        if jax.process_count() == 1:
            return jax.device_put(tree, sharding)
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(np.shape(x), sharding, lambda index: np.asarray(x)[index]),
            tree,
        )

    def _put(self, x: np.ndarray | jax.Array) -> jax.Array:
        return jax.device_put(x, self.groups(x.shape[0]))

    def _join(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[0] * jax.process_count(), *x.shape[1:])
        sharding = self.groups(shape[0])
        held = {shard.device: shard.data for shard in x.addressable_shards}
        # In the order of the mesh, as everything about the sharding is.
        here = [device for device in self.mesh.devices.flat if device in held]
        if {held[device].shape for device in here} != {sharding.shard_shape(shape)}:
            raise ValueError(
                f"{x.shape[0]} groups of this process do not share out evenly over its {len(here)} devices: choose "
                f"grpo.groups_per_micro_batch as a multiple of {self._ways(GROUP_AXES)}"
            )
        return jax.make_array_from_single_device_arrays(shape, sharding, [held[device] for device in here])

    def _ways(self, axes: Sequence[str]) -> int:
        return math.prod(self.mesh.shape[axis] for axis in axes)

    def _report(self, sentence: str) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            logger.warning("%s", sentence)


@lru_cache(maxsize=16)
def _gathering(
    structure: jax.tree_util.PyTreeDef,
    types: tuple[DTypeLike, ...],
    here: tuple[NamedSharding, ...],
    everywhere: tuple[NamedSharding, ...],
) -> Wrapped:
    """One jitted program for trees of the same kind, so that a step compiles nothing."""

    def program(tree: Tree) -> Tree:
        # Cast where they lie: XLA is free to send the wide numbers and cast then.
        cast = [
            jax.lax.with_sharding_constraint(x.astype(dtype), sharding)
            for x, dtype, sharding in zip(jax.tree.leaves(tree), types, here, strict=True)
        ]
        return jax.tree.unflatten(structure, cast)

    return jax.jit(program, out_shardings=jax.tree.unflatten(structure, everywhere))
