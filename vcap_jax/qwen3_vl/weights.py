"""Hugging Face checkpoints in and out: one table of names serves both directions.

A parameter of ours is a stack over layers, has its inputs before its outputs, and may join several public tensors side
by side (q, k and v; gate and up). ``RULES`` says so once; loading, saving, shapes and the conversion of gradients all
read it.

Loading fills one parameter at a time from memory-mapped files, and with a ``sharding`` reads for each device only the
block it holds, so neither the host nor a device ever has two copies of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from vcap_jax.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.qwen3_vl.model import Qwen3VL

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DEFAULT_SHARD_BYTES = 5_000_000_000

Layout = Literal["same", "linear", "conv"]
"""How a public tensor lies against ours: equal; [out, in] for [in, out]; [out, *kernel] for [prod(kernel), out]."""
Shape = tuple[int, ...]
Sharding = Callable[[str, Shape], jax.sharding.Sharding]


@dataclass(frozen=True)
class Rule:
    """One line of the table. ``{i}`` in the public name counts the layers stacked on axis 0 of our parameter.

    ``part`` names the columns (last axis) of ours that this tensor fills; see ``_columns``.
    """

    name: str
    path: str
    layout: Layout = "same"
    part: str | None = None


def _linear(name: str, path: str, part: str | None = None, bias: bool = True) -> tuple[Rule, ...]:
    weight = Rule(f"{name}.weight", f"{path}.kernel", "linear", part)
    return (weight, Rule(f"{name}.bias", f"{path}.bias", "same", part)) if bias else (weight,)


def _layer_norm(name: str, path: str) -> tuple[Rule, ...]:
    return Rule(f"{name}.weight", f"{path}.scale"), Rule(f"{name}.bias", f"{path}.bias")


_BLOCK, _LAYER = "model.visual.blocks.{i}", "model.language_model.layers.{i}"
_DEEPSTACK = "model.visual.deepstack_merger_list.{i}"
RULES: tuple[Rule, ...] = (
    Rule("model.visual.patch_embed.proj.weight", "visual.patch_embed.kernel", "conv"),
    Rule("model.visual.patch_embed.proj.bias", "visual.patch_embed.bias"),
    Rule("model.visual.pos_embed.weight", "visual.pos_embed"),
    *_layer_norm(f"{_BLOCK}.norm1", "visual.blocks.norm1"),
    *_layer_norm(f"{_BLOCK}.norm2", "visual.blocks.norm2"),
    *_linear(f"{_BLOCK}.attn.qkv", "visual.blocks.qkv"),
    *_linear(f"{_BLOCK}.attn.proj", "visual.blocks.proj"),
    *_linear(f"{_BLOCK}.mlp.linear_fc1", "visual.blocks.fc1"),
    *_linear(f"{_BLOCK}.mlp.linear_fc2", "visual.blocks.fc2"),
    *_layer_norm("model.visual.merger.norm", "visual.merger.norm"),
    *_linear("model.visual.merger.linear_fc1", "visual.merger.fc1"),
    *_linear("model.visual.merger.linear_fc2", "visual.merger.fc2"),
    *_layer_norm(f"{_DEEPSTACK}.norm", "visual.deepstack_mergers.norm"),
    *_linear(f"{_DEEPSTACK}.linear_fc1", "visual.deepstack_mergers.fc1"),
    *_linear(f"{_DEEPSTACK}.linear_fc2", "visual.deepstack_mergers.fc2"),
    Rule("model.language_model.embed_tokens.weight", "text.embed_tokens"),
    Rule(f"{_LAYER}.input_layernorm.weight", "text.layers.input_norm.scale"),
    Rule(f"{_LAYER}.post_attention_layernorm.weight", "text.layers.post_attention_norm.scale"),
    *_linear(f"{_LAYER}.self_attn.q_proj", "text.layers.attention.qkv", "q"),
    *_linear(f"{_LAYER}.self_attn.k_proj", "text.layers.attention.qkv", "k"),
    *_linear(f"{_LAYER}.self_attn.v_proj", "text.layers.attention.qkv", "v"),
    *_linear(f"{_LAYER}.self_attn.o_proj", "text.layers.attention.out"),
    Rule(f"{_LAYER}.self_attn.q_norm.weight", "text.layers.attention.q_norm.scale"),
    Rule(f"{_LAYER}.self_attn.k_norm.weight", "text.layers.attention.k_norm.scale"),
    *_linear(f"{_LAYER}.mlp.gate_proj", "text.layers.mlp.gate_up", "gate", bias=False),
    *_linear(f"{_LAYER}.mlp.up_proj", "text.layers.mlp.gate_up", "up", bias=False),
    *_linear(f"{_LAYER}.mlp.down_proj", "text.layers.mlp.down", bias=False),
    Rule("model.language_model.norm.weight", "text.norm.scale"),
    Rule("lm_head.weight", "lm_head"),
)

# Prefixes of older and wrapped checkpoints, first match wins.
_OLDER_PREFIXES = (
    ("visual.", "model.visual."),
    ("model.language_model.lm_head.", "lm_head."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model.language_model."),
    ("language_model.", "model.language_model."),
    ("model.layers.", "model.language_model.layers."),
    ("model.embed_tokens.", "model.language_model.embed_tokens."),
    ("model.norm.", "model.language_model.norm."),
)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint and the block of our parameter it fills.

    name, shape: public. path: ours, dotted. layer: index on axis 0 of ours, or None. columns: on the last axis of ours.
    """

    name: str
    shape: Shape
    path: str
    layer: int | None
    columns: tuple[int, int]
    layout: Layout

    def read(self, source: Any, inputs: slice, columns: slice) -> np.ndarray:
        """The block [inputs, columns] (or [columns]) of this tensor in our orientation, from a sliceable source."""
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


class CheckpointError(ValueError):
    """A checkpoint does not fit its configuration; the message lists every name that does not."""


def parameter_shapes(config: Qwen3VLConfig) -> dict[str, Shape]:
    """Dotted path -> shape of every parameter of ours; allocates nothing."""
    return {path: leaf.shape for path, leaf in _flatten(_abstract(config)).items()}


def checkpoint_shapes(config: Qwen3VLConfig) -> dict[str, Shape]:
    """Public name -> shape of every tensor of the checkpoint; allocates nothing."""
    return {tensor.name: tensor.shape for tensor in checkpoint_tensors(config)}


def checkpoint_tensors(config: Qwen3VLConfig) -> list[Tensor]:
    """The table spelled out for one configuration."""
    tensors = []
    shapes = parameter_shapes(config)
    for rule in RULES:
        if rule.path not in shapes:  # no biases, no DeepStack, or no head of its own
            continue
        shape = shapes[rule.path]
        stacked = "{i}" in rule.name
        columns = _columns(config, rule.part, shape[-1])
        block = (*shape[int(stacked) : -1], columns[1] - columns[0])
        public = _public_shape(config, rule.layout, block)
        for layer in range(shape[0]) if stacked else [None]:
            tensors.append(Tensor(rule.name.format(i=layer), public, rule.path, layer, columns, rule.layout))
    return tensors


def load_pretrained(
    path: str | Path,
    *,
    dtype: Any = jnp.bfloat16,
    param_dtype: Any = jnp.float32,
    remat: bool = False,
    sharding: Sharding | None = None,
) -> Qwen3VL:
    """Load a checkpoint folder: ``config.json`` and safetensors, one file or shards with an index.

    Args:
        path: the folder.
        dtype, param_dtype, remat: see ``Qwen3VL``.
        sharding: (dotted path, shape) of a parameter -> where it goes; None puts all on the default device.

    Raises:
        CheckpointError: missing, unexpected or wrongly shaped tensors, or missing shard files; all are listed.
        FileNotFoundError: no configuration, or no safetensors at all.
    """
    folder = Path(path)
    config = Qwen3VLConfig.from_pretrained(folder)
    tensors = checkpoint_tensors(config)
    by_path: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_path.setdefault(tensor.path, []).append(tensor)

    model = _abstract(config, dtype=dtype, param_dtype=param_dtype, remat=remat)
    graphdef, state = nnx.split(model)
    with ExitStack() as stack:
        sources = _open(folder, tensors, config, stack)
        filled = []
        for keys, param in nnx.to_flat_state(state):
            name = ".".join(map(str, keys))
            leaf = param.get_value()

            def read(index: tuple[slice, ...], name: str = name, leaf: Any = leaf) -> np.ndarray:
                return _read_block(sources, by_path[name], leaf.shape, leaf.dtype, index)

            place = (
                sharding(name, leaf.shape)
                if sharding
                else jax.sharding.SingleDeviceSharding(jax.devices()[0])
            )
            filled.append((keys, param.replace(jax.make_array_from_callback(leaf.shape, place, read))))
    return nnx.merge(graphdef, nnx.from_flat_state(filled))


def save_pretrained(
    model: Qwen3VL, path: str | Path, *, dtype: Any = None, max_shard_bytes: int = DEFAULT_SHARD_BYTES
) -> None:
    """Write ``config.json`` and safetensors under public names, one shard in memory at a time.

    Args:
        model: parameters may be sharded over this process's devices.
        path: folder, made if absent.
        dtype: of the stored tensors; None keeps the parameters' own.
        max_shard_bytes: a shard is closed before it would exceed this (a single larger tensor gets its own).

    Raises:
        FileExistsError: the folder holds weight files of another export that this one would leave behind.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    params = _flatten(model)
    tensors = checkpoint_tensors(model.config)

    def stored(tensor: Tensor) -> np.dtype:
        return np.dtype(dtype if dtype is not None else params[tensor.path].dtype)

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
            tensor.name: _export(params[tensor.path], tensor).astype(stored(tensor)) for tensor in shard
        }
        save_file(arrays, folder / file, metadata={"format": "pt"})
    if count > 1:
        weight_map = {
            tensor.name: file for file, shard in zip(files, shards, strict=True) for tensor in shard
        }
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    values = {**model.config.to_dict(), "dtype": stored(tensors[-1]).name}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def to_public(config: Qwen3VLConfig, state: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Name and array of every tensor as a checkpoint has it, one at a time.

    Args:
        state: a model, or a state of the same structure (gradients, optimizer moments). Parts that are absent
            (filtered out) are skipped.
    """
    leaves = _flatten(state)
    for tensor in checkpoint_tensors(config):
        if tensor.path in leaves:
            yield tensor.name, _export(leaves[tensor.path], tensor)


def from_public(model: Qwen3VL, arrays: Mapping[str, np.ndarray]) -> None:
    """Set all parameters of ``model`` in place from arrays under public names, cast to the parameters' type.

    Raises:
        CheckpointError: as ``load_pretrained``.
    """
    by_path: dict[str, list[Tensor]] = {}
    tensors = checkpoint_tensors(model.config)
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    _verify(tensors, shapes, model.config, missing_shards=[], pending=set())
    for tensor in tensors:
        by_path.setdefault(tensor.path, []).append(tensor)
    sources = {canonical_name(name): array for name, array in arrays.items()}
    state = nnx.state(model, nnx.Param)
    for keys, param in nnx.to_flat_state(state):
        old = param.get_value()
        whole = tuple(slice(0, size) for size in old.shape)
        block = _read_block(sources, by_path[".".join(map(str, keys))], old.shape, old.dtype, whole)
        param.set_value(jnp.asarray(block))
    nnx.update(model, state)


def canonical_name(name: str) -> str:
    """The published spelling of a tensor's name, from any of the older ones."""
    for older, published in _OLDER_PREFIXES:
        if name.startswith(older):
            return published + name[len(older) :]
    return name


def _abstract(config: Qwen3VLConfig, **settings: Any) -> Qwen3VL:
    return nnx.eval_shape(lambda: Qwen3VL(config, rngs=nnx.Rngs(0), **settings))


def _flatten(state: Any) -> dict[str, Any]:
    """Dotted path -> array of a model or state."""
    if isinstance(state, nnx.Module):
        state = nnx.state(state, nnx.Param)
    flat = nnx.to_flat_state(state)
    return {".".join(map(str, keys)): _value(leaf) for keys, leaf in flat}


def _value(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def _columns(config: Qwen3VLConfig, part: str | None, width: int) -> tuple[int, int]:
    """The columns of a joined projection that belong to one of its parts."""
    if part is None:
        return 0, width
    text = config.text
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    return {
        "q": (0, queries),
        "k": (queries, queries + keys),
        "v": (queries + keys, queries + 2 * keys),
        "gate": (0, text.intermediate_size),
        "up": (text.intermediate_size, 2 * text.intermediate_size),
    }[part]


def _public_shape(config: Qwen3VLConfig, layout: Layout, block: Shape) -> Shape:
    if layout == "linear":
        return block[::-1]
    if layout == "conv":
        vision = config.vision
        return block[-1], vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size
    return block


def _open(folder: Path, tensors: list[Tensor], config: Qwen3VLConfig, stack: ExitStack) -> dict[str, Any]:
    """Canonical name -> lazily read slice of every tensor in the folder, after checking them all."""
    index_file, weight_map = folder / INDEX_FILE, {}
    if index_file.is_file():
        weight_map = json.loads(index_file.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(weight_map.values()))
    elif (folder / SINGLE_FILE).is_file():
        files = [SINGLE_FILE]
    else:
        raise FileNotFoundError(f"no weights in {folder}: expected {SINGLE_FILE} or {INDEX_FILE}")
    missing_shards = [file for file in files if not (folder / file).is_file()]
    pending = {canonical_name(name) for name, file in weight_map.items() if file in missing_shards}
    sources: dict[str, Any] = {}
    shapes: dict[str, Shape] = {}
    for file in files:
        if file in missing_shards:
            continue
        handle = stack.enter_context(safe_open(folder / file, framework="numpy"))
        for name in handle.keys():
            source = handle.get_slice(name)
            sources[canonical_name(name)] = source
            shapes[name] = tuple(source.get_shape())
    _verify(tensors, shapes, config, missing_shards, pending)
    return sources


def _verify(
    tensors: list[Tensor],
    found: Mapping[str, Shape],
    config: Qwen3VLConfig,
    missing_shards: list[str],
    pending: set[str],
) -> None:
    """Compare names and shapes; raise one error with everything that is wrong.

    Args:
        found: shapes under the names of the files. pending: canonical names that the missing shards should hold.
    """
    wanted = {tensor.name: tensor.shape for tensor in tensors}
    problems = [f"missing shard file: {file}" for file in missing_shards]
    seen: dict[str, str] = {}
    for name, shape in found.items():
        canonical = canonical_name(name)
        if canonical in seen:
            problems.append(f"unexpected: {name} (the same tensor as {seen[canonical]})")
            continue
        seen[canonical] = name
        if canonical in wanted:
            if shape != wanted[canonical]:
                problems.append(f"wrong shape: {name} is {list(shape)}, expected {list(wanted[canonical])}")
        elif not _may_be_ignored(canonical, config):
            problems.append(f"unexpected: {name} {list(shape)}")
    problems += [
        f"missing: {name} {list(wanted[name])}" for name in wanted if name not in seen and name not in pending
    ]
    if problems:
        raise CheckpointError(
            f"the weights do not fit the configuration ({len(problems)} problems):\n  "
            + "\n  ".join(problems)
        )


def _may_be_ignored(name: str, config: Qwen3VLConfig) -> bool:
    """Tensors some exporters add although the model derives them: a tied head, rotary frequencies."""
    return (name == "lm_head.weight" and config.tie_word_embeddings) or name.endswith("rotary_emb.inv_freq")


def _read_block(
    sources: Mapping[str, Any], tensors: list[Tensor], shape: Shape, dtype: Any, index: tuple[slice, ...]
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


def _export(leaf: Any, tensor: Tensor) -> np.ndarray:
    """One public tensor, cut out of our parameter on its device before it comes to the host."""
    if tensor.layer is not None:
        leaf = jax.lax.dynamic_index_in_dim(leaf, tensor.layer, 0, keepdims=False)
    return tensor.write(np.asarray(leaf[..., tensor.columns[0] : tensor.columns[1]]))


def _refuse_leftovers(folder: Path, written: set[str]) -> None:
    present = {file.name for pattern in ("*.safetensors", INDEX_FILE) for file in folder.glob(pattern)}
    if present - written:
        raise FileExistsError(
            f"{folder} already holds weight files of another export ({', '.join(sorted(present - written))}); "
            "remove them or choose an empty folder"
        )
