"""Hugging Face checkpoints in and out, for any family that states its table of names (``weight_map``).

Loading fills one parameter at a time from memory-mapped files, and with a ``sharding`` reads for each
device only the block it holds, so neither the host nor a device ever has two copies of the model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from vcap_jax.models.errors import CheckpointError, damaged
from vcap_jax.models.lora import Additions
from vcap_jax.models.lora_files import CONFIG_FILE, WEIGHTS_FILE
from vcap_jax.models.tensor_files import PLAIN_TYPES, write_tensors
from vcap_jax.models.weight_map import Mapped, Shape, Sliceable, Tensor, WeightMap, flat_parameters
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.system.json_values import JsonObject

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DEFAULT_SHARD_BYTES = 5_000_000_000
_KEPT = {"F32": np.dtype(np.float32), "BF16": np.dtype(jnp.bfloat16), "F16": np.dtype(np.float16)}
_COMPARED = 8192
"""Rows of a matrix that are compared at a time."""

Sharding = Callable[[str, Shape], jax.sharding.Sharding]
Model = TypeVar("Model", bound=Mapped)


def fill(model: Model, folder: Path, *, sharding: Sharding | None = None) -> Model:
    """The abstract ``model`` with the tensors of a checkpoint folder: safetensors, one file or shards with an index.

    sharding: (dotted path, shape) of a parameter -> where it goes; None puts all on the default device.
    Raises CheckpointError, which lists all missing, unexpected or wrongly shaped tensors and missing shard files,
    FileNotFoundError for no safetensors at all.
    """
    names = model.weight_map
    by_path = _by_path(names)
    graphdef, state = nnx.split(model)
    default = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    with ExitStack() as stack:
        sources = _open(folder, names, stack)
        filled = []
        for keys, param in nnx.to_flat_state(state):
            name = ".".join(map(str, keys))
            leaf = param.get_value()
            read = functools.partial(_read_block, sources, by_path[name], leaf.shape, leaf.dtype)
            place = sharding(name, leaf.shape) if sharding else default
            filled.append((keys, param.replace(jax.make_array_from_callback(leaf.shape, place, read))))
    merged: Model = nnx.merge(graphdef, nnx.from_flat_state(filled))
    return merged


def stored_types(folder: Path, names: WeightMap) -> set[np.dtype]:
    """The types that the model's tensors are stored in; none where the folder has no safetensors. Tensors that are kept
    in float32 beside others of fewer digits (``Tensor.wide``) do not count.

    Raises CheckpointError for a type that parameters cannot be kept in without loss.
    """
    wanted = {tensor.name: tensor for tensor in names.tensors}
    found = set()
    for path in (folder / name for name in _weight_files(folder)[0]):
        if not path.is_file():
            continue  # loading lists all shards that are missing
        try:
            with safe_open(path, framework="numpy") as file:
                types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise CheckpointError(damaged(path, error)) from error
        for name, stored in types.items():
            if (tensor := wanted.get(names.canonical_name(name))) is None:
                continue  # what follows from others may be in another type
            if stored not in _KEPT:
                raise CheckpointError(
                    f"{path}: {name} is stored as {stored}, none of {', '.join(_KEPT)}: convert the checkpoint first"
                )
            if not tensor.wide:
                found.add(_KEPT[stored])
    return found


def save(
    model: Mapped,
    folder: Path,
    config: JsonObject,
    *,
    dtype: DTypeLike | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> float | None:
    """Writes ``config.json`` and safetensors under public names, one shard in memory at a time.

    Adapters are merged into the matrices they add to, in float32, and the sum is rounded to the stored type. What they
    add to a number that is exact in bfloat16 is lost there if it is less than half of that number's last digit.

    model: parameters may be sharded over this process's devices. folder: made if absent. config: what config.json says,
    but for the stored type. dtype: of the stored tensors, but for those that are float32 at least (``Tensor.wide``);
    None keeps the parameters' own. max_shard_bytes: a shard is closed before it would exceed this (a single larger
    tensor gets its own).
    Returns the share of what adapters add that the stored numbers keep (``lora.Additions.kept``); None where they add
    nothing. Raises FileExistsError if the folder holds weight files of another export that this one would leave behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    params, additions = flat_parameters(model), Additions(model)
    tensors = model.weight_map.tensors

    def stored(tensor: Tensor) -> np.dtype:
        own = dtype if dtype is not None else params[tensor.path].dtype
        return np.dtype(jnp.promote_types(own, jnp.float32) if tensor.wide else own)

    shards: list[list[Tensor]] = [[]]
    filled = total = 0
    for tensor in tensors:
        size = int(np.prod(tensor.shape)) * stored(tensor).itemsize
        if filled and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += size
        total += size
    count = len(shards)
    files = (
        [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        if count > 1
        else [SINGLE_FILE]
    )
    _refuse_leftovers(folder, {*files, INDEX_FILE} if count > 1 else set(files))
    for file, shard in zip(files, shards, strict=True):
        arrays = {
            tensor.name: _export(params[tensor.path], tensor, additions, stored(tensor)) for tensor in shard
        }
        write_tensors(arrays, folder / file)
    if count > 1:
        weight_map = {
            tensor.name: file for file, shard in zip(files, shards, strict=True) for tensor in shard
        }
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    values = {**config, "dtype": stored(tensors[-1]).name}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return additions.kept


def write_beside(folder: Path, file: str, name: str, array: np.ndarray) -> None:
    """Adds one more tensor to the checkpoint in ``folder``, in a file of its own."""
    write_tensors({name: array}, folder / file)
    index = folder / INDEX_FILE
    if index.exists():
        # With an index, files it does not name are not read.
        listed = json.loads(index.read_text(encoding="utf-8"))
        listed["weight_map"][name] = file
        index.write_text(json.dumps(listed), encoding="utf-8")


def _by_path(names: WeightMap) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = {}
    for tensor in names.tensors:
        found.setdefault(tensor.path, []).append(tensor)
    return found


def _weight_files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The names of the files of weights, and the index: the file of each tensor. Both empty where there are none."""
    index_file = folder / INDEX_FILE
    if not index_file.is_file():
        return [SINGLE_FILE] if (folder / SINGLE_FILE).is_file() else [], {}
    try:
        weight_map = dict(json.loads(index_file.read_text(encoding="utf-8"))["weight_map"])
        if not all(isinstance(file, str) for file in weight_map.values()):
            raise TypeError("a tensor's file is no name")
        if not weight_map:
            raise LookupError("no tensor is named")
    except (ValueError, TypeError, LookupError) as error:
        raise CheckpointError(
            f"{index_file} is no index of weights: restore it from the checkpoint"
        ) from error
    files = set(weight_map.values())
    if (folder / SINGLE_FILE).is_file() and SINGLE_FILE not in files:
        raise CheckpointError(
            f"{folder} holds two checkpoints: {SINGLE_FILE}, and other files that {INDEX_FILE} names (the public "
            "loader takes the first): remove one of them"
        )
    return sorted(files), weight_map


def _open(folder: Path, names: WeightMap, stack: ExitStack) -> dict[str, Sliceable]:
    """Canonical name -> lazily read slice of every tensor in the folder, after checking them all."""
    files, weight_map = _weight_files(folder)
    if not files:
        raise FileNotFoundError(f"no weights in {folder}: expected {SINGLE_FILE} or {INDEX_FILE}")
    if all((folder / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE)):
        raise CheckpointError(
            f"{folder} holds a whole model and an adapter beside it ({CONFIG_FILE}), which the public loader adds to "
            f"it: move {CONFIG_FILE} and {WEIGHTS_FILE} to a folder of their own, and name that as model.lora.adapter "
            "if the adapter is wanted"
        )
    missing_shards = [file for file in files if not (folder / file).is_file()]
    pending = {names.canonical_name(name) for name, file in weight_map.items() if file in missing_shards}
    sources: dict[str, Sliceable] = {}
    shapes: dict[str, Shape] = {}
    quantised: dict[str, str] = {}
    for file in files:
        if file in missing_shards:
            continue
        try:
            handle = stack.enter_context(safe_open(folder / file, framework="numpy"))
        except SafetensorError as error:
            raise CheckpointError(damaged(folder / file, error)) from error
        for name in handle.keys():  # noqa: SIM118 (not a dictionary)
            source = handle.get_slice(name)
            sources[names.canonical_name(name)] = source
            shapes[name] = tuple(source.get_shape())
            if (stored := source.get_dtype()) not in PLAIN_TYPES:
                quantised[name] = stored
    for name, read in names.copies:
        # Of two that are one, whoever wrote the folder may have kept either.
        if name in sources and read not in sources and read not in pending:
            sources[read] = sources[name]
            shapes[read] = shapes[next(stored for stored in shapes if names.canonical_name(stored) == name)]
    _verify(names, shapes, quantised, missing_shards, pending)
    _check_copies(names, sources)
    return sources


def _check_copies(names: WeightMap, sources: Mapping[str, Sliceable]) -> None:
    """Raises CheckpointError if a tensor is stored that is not what the model computes with in its place."""
    rows = {tensor.name: tensor.shape[0] for tensor in names.tensors}
    for name, read in names.copies:
        if name not in sources:
            continue
        for first in range(0, rows[read], _COMPARED):
            part = slice(first, min(first + _COMPARED, rows[read]))
            if not np.array_equal(sources[name][part], sources[read][part]):
                raise CheckpointError(
                    f"config.json says that {name} is {read} (tie_word_embeddings), and the weights have another "
                    "one: set tie_word_embeddings to false there, or leave the tensor out of the weights"
                )


def _verify(
    names: WeightMap,
    found: Mapping[str, Shape],
    quantised: Mapping[str, str],
    missing_shards: list[str],
    pending: set[str],
) -> None:
    """Compares names and shapes; raises one error with everything that is wrong.

    found: shapes under the names of the files. quantised: types of those that are no plain numbers. pending: canonical
    names that the missing shards should hold.
    """
    wanted = {tensor.name: tensor.shape for tensor in names.tensors}
    copies = {name: wanted[read] for name, read in names.copies}
    problems = [f"missing shard file: {file}" for file in missing_shards]
    seen: dict[str, str] = {}
    for name, shape in found.items():
        canonical = names.canonical_name(name)
        if canonical in seen:
            problems.append(f"unexpected: {name} (the same tensor as {seen[canonical]})")
            continue
        seen[canonical] = name
        if (expected := wanted.get(canonical, copies.get(canonical))) is not None:
            if shape != expected:
                problems.append(f"wrong shape: {name} is {list(shape)}, expected {list(expected)}")
            elif name in quantised:
                problems.append(
                    f"quantised: {name} is stored as {quantised[name]}; take the checkpoint of this size in bfloat16"
                )
        elif not names.derived(canonical):
            problems.append(f"unexpected: {name} {list(shape)}")
    problems += [
        f"missing: {name} {list(wanted[name])}" for name in wanted if name not in seen and name not in pending
    ]
    if problems:
        raise CheckpointError(
            f"the weights do not fit the configuration ({len(problems)} problems):\n  "
            + "\n  ".join(problems)
        )


def _read_block(
    sources: Mapping[str, Sliceable],
    tensors: Sequence[Tensor],
    shape: Shape,
    dtype: DTypeLike,
    index: tuple[slice, ...],
) -> np.ndarray:
    """The block ``index`` of one of our parameters, gathered from its public tensors and cast."""
    bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    out = np.empty([stop - start for start, stop in bounds], dtype)
    column_start, column_stop = bounds[-1]
    inputs = slice(*bounds[-2]) if len(bounds) > 1 else slice(None)
    for tensor in tensors:
        if tensor.layer is not None and not bounds[0][0] <= tensor.layer < bounds[0][1]:
            continue
        start, stop = max(column_start, tensor.columns[0]), min(column_stop, tensor.columns[1])
        if start >= stop:
            continue
        offset = tensor.columns[0]
        block = tensor.read(sources[tensor.name], inputs, slice(start - offset, stop - offset))
        target = out if tensor.layer is None else out[tensor.layer - bounds[0][0]]
        target[..., start - column_start : stop - column_start] = block
    return out


def _export(leaf: AnyArray, tensor: Tensor, additions: Additions, dtype: np.dtype) -> np.ndarray:
    """One public tensor in ``dtype``, with what ``additions`` has for it."""
    block, addition = _block(leaf, tensor), additions.of(tensor)
    if addition is None:
        return tensor.write(block).astype(dtype)
    additions.note_rounding(block, addition, dtype)
    return tensor.write(block.astype(np.float32) + addition).astype(dtype)


def _block(leaf: AnyArray, tensor: Tensor) -> np.ndarray:
    """Our block of a public tensor, cut out of our parameter on its device before it comes to the host."""
    if isinstance(leaf, jax.Array) and leaf.sharding.device_set <= set(jax.local_devices(backend="cpu")):
        leaf = np.asarray(leaf)  # a view, and no program to compile for the cut
    if isinstance(leaf, np.ndarray):
        leaf = leaf if tensor.layer is None else leaf[tensor.layer]
    elif tensor.layer is not None:
        leaf = jax.lax.dynamic_index_in_dim(leaf, tensor.layer, 0, keepdims=False)
    return np.asarray(leaf[..., tensor.columns[0] : tensor.columns[1]])


def _refuse_leftovers(folder: Path, written: set[str]) -> None:
    present = {file.name for pattern in ("*.safetensors", INDEX_FILE) for file in folder.glob(pattern)}
    if present - written:
        raise FileExistsError(
            f"{folder} already holds weight files of another export: {', '.join(sorted(present - written))}; "
            "remove them or choose an empty folder"
        )
