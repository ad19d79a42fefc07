"""LoRA (arXiv:2106.09685): low-rank adapters of the decoder's projections, the only parameters that are trained.

An adapter is named as in PEFT, after the public matrix it adds to (``q_proj``, ``gate_proj``, ...). Here some of those
matrices are joined; the table of names says which columns are whose, so that what is trained here is what PEFT
would train (``layers.Adapter``). ``b`` begins at zero: the policy begins as its base, and a tree of adapters with
``b`` at zero is the base again, without a second copy of it.
"""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from pydantic import AfterValidator, Field

from vcap_jax.configuration import ConfigError, settings
from vcap_jax.models.layers import Adapter, Linear, part_columns
from vcap_jax.models.weight_map import Mapped, PathParts, Shape, Tensor, WeightMap

Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""The public names of the decoder's matrices, all of which can have adapters."""


def _each_once(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    if not targets or len(set(targets)) < len(targets):
        raise ValueError("give one or more names of matrices, each once")
    return targets


Parts = tuple[tuple[int, int], ...]

_NODE = "adapter"
_MEASURED = 2**18
"""Numbers of a matrix that ``Additions.note_rounding`` looks at: at 8B some 60 million in all, well under a second."""


@settings
class LoraConfig:
    """Low-rank adapters on matrices of the decoder; everything else is frozen."""

    rank: int = Field(default=16, ge=1)
    """Rank of each adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """The product of an adapter counts alpha / rank times."""
    targets: Annotated[tuple[Target, ...], AfterValidator(_each_once)] = TARGETS
    """Public names of the matrices that get one, each once."""
    use_rslora: bool = False
    """Count it alpha / sqrt(rank) times instead."""
    adapter: str | None = None
    """A folder in PEFT's format to start from; its rank, alpha, targets and use_rslora must be
    these."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the random half of new adapters."""

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)


@dataclass(frozen=True)
class AdaptedMatrix:
    """One public matrix with an adapter. tensor: the matrix; linear: dotted path of our layer that holds it; a, b: its
    columns of that layer's adapter."""

    tensor: Tensor
    linear: str
    a: slice
    b: slice

    @property
    def array_paths(self) -> tuple[str, str]:
        """Dotted paths of ``a`` and ``b``."""
        return f"{self.linear}.{_NODE}.a", f"{self.linear}.{_NODE}.b"


def attach(
    model: Mapped,
    config: LoraConfig,
    *,
    param_dtype: DTypeLike = jnp.float32,
    sharding: Callable[[str, Shape], jax.sharding.Sharding] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Gives ``model`` its adapters, in place.

    model: an abstract one gets abstract adapters.
    param_dtype: what the adapters are kept in. sharding: (dotted path, shape) -> where an array goes.
    values: dotted path -> array of every adapter; None draws ``a`` uniformly within 1 / sqrt(inputs), as PEFT does, and
        leaves ``b`` zero. The draw depends on the seed and the path alone.
    """
    for linear_path, parts in target_parts(model.weight_map, config.targets).items():
        linear = operator.attrgetter(linear_path)(model)
        assert isinstance(linear, Linear)
        *stack, inputs, outputs = linear.kernel.shape
        width = sum(stop - start for start, stop in parts)
        shapes = {"a": (*stack, inputs, len(parts) * config.rank), "b": (*stack, config.rank, width)}
        arrays: dict[str, jax.Array | jax.ShapeDtypeStruct] = {}
        for name, shape in shapes.items():
            path = f"{linear_path}.{_NODE}.{name}"
            if isinstance(linear.kernel.get_value(), jax.ShapeDtypeStruct):
                arrays[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(param_dtype))
                continue
            if values is not None:
                value = values[path]
            elif name == "b":
                value = np.zeros(shape, np.float32)
            else:
                generator = np.random.default_rng([config.seed, zlib.crc32(path.encode())])
                value = generator.uniform(-1, 1, shape).astype(np.float32) / math.sqrt(inputs)
            arrays[name] = _place(value.astype(param_dtype), sharding and sharding(path, shape))
        adapter = Adapter(**arrays, rank=config.rank, scale=config.scale, parts=parts, outputs=outputs)
        linear.adapter = nnx.data(adapter)  # where None was: Flax asks to be told


def is_adapter(path: PathParts, value: object = None) -> bool:
    """An nnx filter, True for the arrays of adapters."""
    del value
    return len(path) > 1 and str(path[-2]) == _NODE


def adapters(model: Mapped) -> dict[str, Adapter]:
    """Dotted path of a layer -> its adapter; empty for a model without any."""
    assert isinstance(model, nnx.Module)
    return {
        ".".join(map(str, path[:-1])): node
        for path, node in nnx.iter_modules(model)
        if isinstance(node, Adapter)
    }


def adapted_matrices(names: WeightMap, parts: Mapping[str, Parts], rank: int) -> tuple[AdaptedMatrix, ...]:
    """Every public matrix that has an adapter, in the checkpoint's order.

    parts: dotted path of a layer -> its columns that have adapters (see ``target_parts``).
    """
    out = []
    for tensor in names.tensors:
        linear = tensor.path.removesuffix(".kernel")
        own = parts.get(linear, ()) if linear != tensor.path else ()
        if tensor.columns in own:
            a, b = part_columns(own, rank)[own.index(tensor.columns)]
            out.append(AdaptedMatrix(tensor, linear, a, b))
    return tuple(out)


def target_parts(names: WeightMap, targets: tuple[str, ...]) -> dict[str, Parts]:
    """Dotted path of a layer -> its columns that ``targets`` name, ascending. Raises ConfigError if one names none."""
    found: dict[str, set[tuple[int, int]]] = {}
    known: set[str] = set()
    for tensor in names.tensors:
        if tensor.path.startswith(names.adaptable) and (target := target_of(tensor)):
            known.add(target)
            if target in targets:
                found.setdefault(tensor.path.removesuffix(".kernel"), set()).add(tensor.columns)
    if unknown := sorted(set(targets) - known):
        raise ConfigError(
            f"model.lora.targets names {', '.join(unknown)}, but this model has no such matrices; it has "
            f"{', '.join(sorted(known))}"
        )
    return {path: tuple(sorted(columns)) for path, columns in found.items()}


def target_of(tensor: Tensor) -> str:
    """``q_proj`` of ``model.language_model.layers.3.self_attn.q_proj.weight``; empty for what is no matrix."""
    return tensor.name.split(".")[-2] if tensor.layout == "linear" else ""


class Additions:
    """What the adapters of ``model`` add to the matrices of a checkpoint, one matrix at a time on the host; and how
    much of it is left of those that were merged and rounded."""

    def __init__(self, model: Mapped) -> None:
        self._along = self._whole = 0.0
        self._matrices: dict[str, tuple[AdaptedMatrix, np.ndarray, np.ndarray, float]] = {}
        for path, node in adapters(model).items():
            a, b = (np.asarray(x[...], np.float32) for x in (node.a, node.b))
            for matrix in adapted_matrices(model.weight_map, {path: node.parts}, node.rank):
                self._matrices[matrix.tensor.name] = (matrix, a, b, node.scale)

    def of(self, tensor: Tensor) -> np.ndarray | None:
        """float32 [inputs, columns] to add to our block of ``tensor``; None if it has no adapter."""
        if tensor.name not in self._matrices:
            return None
        matrix, a, b, scale = self._matrices[tensor.name]
        at = matrix.tensor.at
        return np.float32(scale) * (a[at][:, matrix.a] @ b[at][:, matrix.b])

    def note_rounding(self, block: np.ndarray, addition: np.ndarray, dtype: DTypeLike) -> None:
        """Takes a matrix into account that is stored as ``block + addition`` rounded to ``dtype``, both [inputs,
        columns]; of a large one, rows in equal distances."""
        rows = slice(None, None, max(1, addition.size // _MEASURED))
        block, added = block[rows], addition[rows]
        stored = (block.astype(np.float32) + added).astype(dtype).astype(np.float32)
        moved = stored - block.astype(dtype).astype(np.float32)
        self._along += float(np.vdot(moved, added))
        self._whole += float(np.vdot(added, added))

    @property
    def kept(self) -> float | None:
        """The share of the additions that rounding has left, of all matrices noted: sum(moved * added) / sum(added^2),
        where ``moved`` is how far the stored numbers lie from those of the base in the same type. 1 within rounding
        errors if nothing is lost; 0 if what is stored is the base; None if nothing is added."""
        return self._along / self._whole if self._whole else None


def _place(value: np.ndarray, sharding: jax.sharding.Sharding | None) -> jax.Array:
    if sharding is None:
        return jnp.asarray(value)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
