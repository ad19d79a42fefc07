"""Activations stay where their groups are.

Parameters are cut over the devices that groups are split over (``parallel.sharding``), and XLA may choose what to
send for a product: a device's part of the parameters, or everybody's activations. Left alone it chooses the
activations, which at tens of thousands of tokens per group are many times larger, and every device then holds all
of them. Saying that a product's result is split by group leaves it one way: gather the layer's parameters, use them,
drop them.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, ParamSpec, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered, Traced, Wrapped

from vcap_jax.parallel.sharding import COPIES, FSDP_AXES

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

NOT_OF_GROUPS = "tensor"
"""The axis of the mesh that cuts products; groups are split over all others."""
CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""XLA's CPU backend joins products and sums with what surrounds them and hands them to a library, YNNPACK; this
leaves them to XLA, which is quicker for whole sequences. The sum over tokens of a product of
three arrays, a norm's gradient, takes the library 10 ms for 2,624 x 256 numbers and XLA less than 1. Decoding,
whose products have few rows, keeps the library."""


def group_axes(mesh: AbstractMesh) -> tuple[str, ...]:
    """The axes that groups are still to be split over: those of a surrounding ``shard_map`` have been dealt with."""
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if name != NOT_OF_GROUPS and kind != AxisType.Manual)


def group_ways() -> int:
    """In how many ways the surrounding program splits groups over devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in group_axes(mesh))


def by_group(x: jax.Array, axis: int = 0) -> jax.Array:
    """``x`` [B, ...], B groups, kept split by group under the mesh of the surrounding program.

    Groups are on ``axis``, alone or each with as many rows of it. Nothing happens outside a mesh (see
    ``GroupShardedJit``), if its devices do not divide B, or inside a ``shard_map`` whose devices each have groups of
    their own.
    """
    ways = group_ways()
    if ways == 1 or x.shape[axis] % ways:
        return x
    spec: list[object] = [PartitionSpec.UNCONSTRAINED] * x.ndim
    spec[axis] = group_axes(jax.sharding.get_abstract_mesh())
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def looked_up(x: jax.Array) -> jax.Array:
    """Rows [B, ..., D] that B groups have taken from a table whose width D is cut over ``fsdp``, where copies of the
    model each have groups of their own (``data``).

    A device takes its part of D for all groups of its copy, and these are then moved to where the groups are; gradients
    go back the same way. Left alone XLA has every device gather the gradients of all groups' rows. With one copy it
    finds this way by itself, and nothing happens; nor where the devices do not divide B or D.
    """
    mesh = jax.sharding.get_abstract_mesh()
    free = group_axes(mesh)
    width = tuple(axis for axis in FSDP_AXES if axis in free and mesh.shape[axis] > 1)
    copies = mesh.shape[COPIES] if COPIES in free else 1
    parts = math.prod(mesh.shape[axis] for axis in width)
    if copies == 1 or parts == 1 or x.shape[0] % (copies * parts) or x.shape[-1] % parts:
        return x
    spec = PartitionSpec(COPIES, *[None] * (x.ndim - 2), width)
    return by_group(jax.lax.with_sharding_constraint(x, spec))


def cut_by_tensor(x: jax.Array, axis: int | None) -> jax.Array:
    """``x`` cut over ``tensor`` on ``axis``, or whole on all of its devices (None). Other axes of the mesh are left as
    they are; nothing happens without a mesh that has several devices along ``tensor``."""
    if jax.sharding.get_abstract_mesh().shape.get(NOT_OF_GROUPS, 1) == 1:
        return x
    spec: list[object] = [PartitionSpec.UNCONSTRAINED if group_ways() > 1 else None] * x.ndim
    if axis is not None:
        spec[axis] = NOT_OF_GROUPS
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def cut_sequence(x: jax.Array, *, whole: bool = False) -> jax.Array:
    """Hidden states [B, S, D] between layers, their tokens cut over ``tensor``.

    Products leave a sum on each of its devices. Cut so, what goes token by token (norms, additions) is done once, not
    on each, and so is kept what waits for the backward pass (sequence parallelism: Korthikanti et al., "Reducing
    Activation Recomputation in Large Transformer Models", section 4.2.2). Left as they are where the devices do not
    divide S, as when single tokens are decoded. whole: before that they lie whole on all of them; cut already where
    they come from, prompt and captions would each be cut, and be moved when they are joined.
    """
    parts = jax.sharding.get_abstract_mesh().shape.get(NOT_OF_GROUPS, 1)
    if parts == 1 or x.shape[1] % parts:
        return x
    if whole:
        x = jax.lax.with_sharding_constraint(x, PartitionSpec(PartitionSpec.UNCONSTRAINED, None, None))
    return cut_by_tensor(x, 1)


def whole_sequence(x: jax.Array) -> jax.Array:
    """What attention takes and gives, [B, S, numbers of heads], with all tokens on each device of ``tensor`` that has
    the heads, and so its gradient. After ``cut_sequence`` XLA may cut attention's own loops by tokens, and send in each
    round of them."""
    if x.ndim != 3 or jax.sharding.get_abstract_mesh().shape.get(NOT_OF_GROUPS, 1) == 1:
        return x
    free = PartitionSpec.UNCONSTRAINED
    return jax.lax.with_sharding_constraint(x, PartitionSpec(free, None, free))


def whole_stack(x: jax.Array) -> jax.Array:
    """Parameters [N, ...] of N layers on their way into a scan: no device keeps some of the layers only.

    A scan takes one layer at a time, on all devices at once; a stack that is cut by layers is gathered before it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(None, *free))


@functools.cache
def compiler_options(platform: str) -> dict[str, str]:
    """For programs on a platform, as JAX names it; none where the installed XLA does not know them."""
    if platform != "cpu":
        return {}
    try:
        jax.jit(lambda x: x + 1, compiler_options=CPU_OPTIONS).lower(0.0).compile()
    except jax.errors.JaxRuntimeError as error:
        # They are XLA's experimental ones, and what they mend may have been mended.
        logger.info("compiler options that this XLA does not know are left out: %s", error)
        return {}
    return CPU_OPTIONS


class GroupShardedJit(Generic[Arguments, Result]):
    """``jax.jit`` for programs whose first argument is a tree of placed parameters: they are traced under those
    parameters' mesh, which ``by_group`` needs to know, and compiled with the options of its platform.
    donate_argnums: as jit's."""

    def __init__(
        self, function: Callable[Arguments, Result], *, donate_argnums: tuple[int, ...] = ()
    ) -> None:
        self._jit = functools.partial(jax.jit, function, donate_argnums=donate_argnums)
        self._jitted: dict[str, Wrapped] = {}
        self._check: Callable[[str], None] | None = None

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with _mesh_of(arguments[0]):
            jitted = self._on(arguments[0])
            if self._check is not None:
                # The call finds what is compiled here: nothing is traced or compiled twice.
                text = jitted.lower(*arguments, **named).compile().as_text()
                if text is not None:
                    self._check(text)
                self._check = None
            return jitted(*arguments, **named)  # type: ignore[no-any-return]  # as ``function`` does

    def check_next(self, check: Callable[[str], None]) -> None:
        """Hands the compiled text of the next call's program to ``check`` before it runs, where the platform gives it;
        what ``check`` raises, the call raises."""
        self._check = check

    def trace(self, params: object, *arguments: object) -> Traced:
        """As the method of a jitted function; arguments may be ``jax.ShapeDtypeStruct`` with shardings."""
        with _mesh_of(params):
            return self._on(params).trace(params, *arguments)

    def lower(self, params: object, *arguments: object) -> Lowered:
        """See ``trace``."""
        with _mesh_of(params):
            return self._on(params).lower(params, *arguments)

    def _on(self, params: object) -> Wrapped:
        sharding = getattr(next(iter(jax.tree.leaves(params)), None), "sharding", None)
        platform = next(iter(sharding.device_set)).platform if sharding is not None else jax.default_backend()
        if platform not in self._jitted:
            self._jitted[platform] = self._jit(compiler_options=compiler_options(platform))
        return self._jitted[platform]


def _mesh_of(params: object) -> AbstractContextManager[object]:
    sharding = getattr(next(iter(jax.tree.leaves(params)), None), "sharding", None)
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    if isinstance(mesh, Mesh) and mesh.size > 1:
        return jax.set_mesh(mesh)
    return nullcontext()
