"""Which tensor of a public checkpoint fills which block of which parameter of ours.

A family states its table once (``Rule``); loading, saving, shapes and adapters all read it.
A parameter of ours may be a stack over layers, has its inputs before its outputs, and may join several public tensors
side by side (q, k and v; gate and up).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from flax import nnx

from vcap_jax.parallel.arrays import AnyArray

Layout = Literal["same", "linear", "conv"]
"""How a public tensor lies against ours: equal, [out, in] to [in, out], or [out, *k] to [prod(k), out]."""
Shape = tuple[int, ...]
PathParts = tuple[Hashable, ...]
"""Of a parameter in a model or state, one name or index after the other."""


class Sliceable(Protocol):
    """An array, or a tensor in a file of which only the slices that are asked for are read."""

    def __getitem__(self, index: slice | tuple[slice, ...], /) -> np.ndarray: ...


@dataclass(frozen=True)
class Rule:
    """One line of the table. ``{i}`` in the public name counts the layers stacked on axis 0 of our parameter.

    ``part`` names the columns (last axis) of ours that this tensor fills; the family knows them (``spelled_out``).
    ``layers`` are the public numbers of the stacked layers, 0, 1, ... where it is left out. ``wide``: see ``Tensor``.
    """

    name: str
    path: str
    layout: Layout = "same"
    part: str | None = None
    layers: tuple[int, ...] | None = None
    wide: bool = False


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint and the block of our parameter it fills.

    name, shape: public. path: ours, dotted. layer: index on axis 0 of ours, or None. columns: on the last
    axis of ours. wide: published in float32 beside others in fewer digits, and so kept and stored.
    """

    name: str
    shape: Shape
    path: str
    layer: int | None
    columns: tuple[int, int]
    layout: Layout
    wide: bool = False

    @property
    def at(self) -> tuple[int, ...]:
        """Index of the layer in a parameter that stacks layers, empty where none is stacked."""
        return () if self.layer is None else (self.layer,)

    def read(self, source: Sliceable, inputs: slice, columns: slice) -> np.ndarray:
        """The block [inputs, columns] (or [columns]) of this tensor as ours lies, from a sliceable source."""
        if self.layout == "linear":
            return np.asarray(source[columns, inputs]).T
        if self.layout == "conv":
            block = np.asarray(source[columns])
            return block.reshape(block.shape[0], -1).T[inputs]
        return np.asarray(source[columns] if len(self.shape) == 1 else source[inputs, columns])

    def write(self, block: np.ndarray) -> np.ndarray:
        """The public tensor from our block of it."""
        if self.layout == "same":
            return block
        return np.ascontiguousarray(block.T).reshape(self.shape)


def _same(name: str) -> str:
    return name


def _nothing(name: str) -> bool:
    del name
    return False


@dataclass(frozen=True)
class WeightMap:
    """A family's tensors for one configuration.

    tensors: in the checkpoint's order. canonical_name: the published spelling of a name, from any of the older ones.
    derived: whether a file may hold a tensor of that (canonical) name that the model does not read, because it
        follows from others. copies: of those, the ones that must be equal to another tensor, by canonical names: a
        stored head beside a tied one. adaptable: dotted prefix of the layers whose matrices can have adapters.
    """

    tensors: tuple[Tensor, ...]
    canonical_name: Callable[[str], str] = _same
    derived: Callable[[str], bool] = _nothing
    copies: tuple[tuple[str, str], ...] = ()
    adaptable: str = ""


class Mapped(Protocol):
    """A model that knows its public names."""

    @property
    def weight_map(self) -> WeightMap: ...


def spelled_out(
    rules: Iterable[Rule],
    shapes: Mapping[str, Shape],
    *,
    columns: Callable[[str], tuple[int, int]],
    convolution: Callable[[Shape], Shape],
) -> tuple[Tensor, ...]:
    """The tensors of a table of names.

    shapes: dotted path -> shape of every parameter of ours; rules of other paths are left out. columns: of a joined
    parameter, by the name of its part. convolution: our block [prod(k), out] -> the public shape [out, *k].
    """
    tensors: list[Tensor] = []
    for rule in rules:
        if rule.path not in shapes:  # a part that this configuration lacks: biases, a head of its own
            continue
        shape = shapes[rule.path]
        stacked = "{i}" in rule.name
        part = (0, shape[-1]) if rule.part is None else columns(rule.part)
        block = (*shape[int(stacked) : -1], part[1] - part[0])
        public = {"same": block, "linear": block[::-1]}.get(rule.layout)
        if public is None:
            public = convolution(block)
        if not stacked:
            tensors.append(Tensor(rule.name, public, rule.path, None, part, rule.layout, rule.wide))
            continue
        numbers = range(shape[0]) if rule.layers is None else rule.layers
        tensors += [
            Tensor(rule.name.format(i=number), public, rule.path, layer, part, rule.layout, rule.wide)
            for layer, number in zip(range(shape[0]), numbers, strict=True)
        ]
    return tuple(tensors)


def flat_parameters(state: object) -> dict[str, AnyArray]:
    """Dotted path -> array of a model or a state: parameters, their gradients, an abstract model's shapes."""
    if not isinstance(state, nnx.State):
        state = nnx.state(state, nnx.Param)
    flat = nnx.to_flat_state(state)
    return {".".join(map(str, keys)): _value(leaf) for keys, leaf in flat}


def _value(leaf: AnyArray | nnx.Variable[AnyArray]) -> AnyArray:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
