"""The table of names: which tensor of a Hugging Face checkpoint fills which block of which parameter of ours.

A parameter of ours is a stack over layers, has its inputs before its outputs, and may join several public
tensors side by side (q, k and v; gate and up). ``RULES`` says so once; loading, saving, shapes and the
conversion of gradients all read it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from flax import nnx

from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL

Layout = Literal["same", "linear", "conv"]
"""How a public tensor lies against ours: equal, [out, in] to [in, out], or [out, *k] to [prod(k), out]."""
Shape = tuple[int, ...]


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

    name, shape: public. path: ours, dotted. layer: index on axis 0 of ours, or None. columns: on the last
    axis of ours.
    """

    name: str
    shape: Shape
    path: str
    layer: int | None
    columns: tuple[int, int]
    layout: Layout

    def read(self, source: Any, inputs: slice, columns: slice) -> np.ndarray:
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


def parameter_shapes(config: Qwen3VLConfig) -> dict[str, Shape]:
    """Dotted path -> shape of every parameter of ours; allocates nothing."""
    return dict(_parameter_shapes(config))


@functools.cache
def _parameter_shapes(config: Qwen3VLConfig) -> dict[str, Shape]:
    return {path: leaf.shape for path, leaf in flat_parameters(abstract_model(config)).items()}


def checkpoint_shapes(config: Qwen3VLConfig) -> dict[str, Shape]:
    """Public name -> shape of every tensor of the checkpoint; allocates nothing."""
    return {tensor.name: tensor.shape for tensor in checkpoint_tensors(config)}


@functools.cache
def checkpoint_tensors(config: Qwen3VLConfig) -> tuple[Tensor, ...]:
    """The table spelled out for one configuration."""
    tensors: list[Tensor] = []
    shapes = _parameter_shapes(config)
    for rule in RULES:
        if rule.path not in shapes:  # no biases, no DeepStack, or no head of its own
            continue
        shape = shapes[rule.path]
        stacked = "{i}" in rule.name
        columns = _columns(config, rule.part, shape[-1])
        block = (*shape[int(stacked) : -1], columns[1] - columns[0])
        public = _public_shape(config, rule.layout, block)
        tensors += [
            Tensor(rule.name.format(i=layer), public, rule.path, layer, columns, rule.layout)
            for layer in (range(shape[0]) if stacked else [None])
        ]
    return tuple(tensors)


def canonical_name(name: str) -> str:
    """The published spelling of a tensor's name, from any of the older ones."""
    for older, published in _OLDER_PREFIXES:
        if name.startswith(older):
            return published + name[len(older) :]
    return name


def abstract_model(config: Qwen3VLConfig, **settings: Any) -> Qwen3VL:
    """The model with shapes in place of arrays."""
    return nnx.eval_shape(lambda: Qwen3VL(config, rngs=nnx.Rngs(0), **settings))


def flat_parameters(state: Any) -> dict[str, Any]:
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
