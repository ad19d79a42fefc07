"""The table of names: which tensor of a Hugging Face checkpoint fills which block of which parameter of ours.

``RULES`` says so once; ``vcap_jax.models.weight_map`` says how it is read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.weight_map import Rule, Shape, Tensor, WeightMap, flat_parameters, spelled_out


def _linear(name: str, path: str, part: str | None = None, bias: bool = True) -> tuple[Rule, ...]:
    weight = Rule(f"{name}.weight", f"{path}.kernel", "linear", part)
    return (weight, Rule(f"{name}.bias", f"{path}.bias", "same", part)) if bias else (weight,)


def _layer_norm(name: str, path: str) -> tuple[Rule, ...]:
    return Rule(f"{name}.weight", f"{path}.scale"), Rule(f"{name}.bias", f"{path}.bias")


_BLOCK, _LAYER = "model.visual.blocks.{i}", "model.language_model.layers.{i}"
EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"
_DEEPSTACK = "model.visual.deepstack_merger_list.{i}"
VISION_RULES: tuple[Rule, ...] = (
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
)
RULES: tuple[Rule, ...] = (
    *VISION_RULES,
    Rule(EMBEDDING, "text.embed_tokens"),
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
    Rule(HEAD, "lm_head"),
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


@functools.cache
def parameter_shapes(config: Qwen3VLConfig) -> Mapping[str, Shape]:
    """Dotted path -> shape of every parameter of ours; allocates nothing."""
    return {path: leaf.shape for path, leaf in flat_parameters(Qwen3VL.abstract(config)).items()}


def checkpoint_shapes(config: Qwen3VLConfig) -> dict[str, Shape]:
    """Public name -> shape of every tensor of the checkpoint; allocates nothing."""
    return {tensor.name: tensor.shape for tensor in checkpoint_tensors(config)}


@functools.cache
def checkpoint_tensors(config: Qwen3VLConfig) -> tuple[Tensor, ...]:
    """The table spelled out for one configuration."""
    vision = config.vision

    def convolution(block: Shape) -> Shape:
        return block[-1], vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size

    return spelled_out(
        RULES,
        parameter_shapes(config),
        columns=functools.partial(_columns, config),
        convolution=convolution,
    )


@functools.cache
def weight_map(config: Qwen3VLConfig) -> WeightMap:
    """The tensors, their older names, and those that some exporters add although the model derives them: a tied head,
    rotary frequencies."""

    def derived(name: str) -> bool:
        return (name == HEAD and config.tie_word_embeddings) or name.endswith(".inv_freq")

    return WeightMap(
        checkpoint_tensors(config),
        canonical_name,
        derived,
        copies=((HEAD, EMBEDDING),) if config.tie_word_embeddings else (),
        adaptable="text.layers.",
    )


def canonical_name(name: str) -> str:
    """The published spelling of a tensor's name, from any of the older ones."""
    for older, published in _OLDER_PREFIXES:
        if name.startswith(older):
            return published + name[len(older) :]
    return name


def _columns(config: Qwen3VLConfig, part: str) -> tuple[int, int]:
    """The columns of a joined projection that belong to one of its parts."""
    text = config.text
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    return {
        "q": (0, queries),
        "k": (queries, queries + keys),
        "v": (queries + keys, queries + 2 * keys),
        "gate": (0, text.intermediate_size),
        "up": (text.intermediate_size, 2 * text.intermediate_size),
    }[part]
