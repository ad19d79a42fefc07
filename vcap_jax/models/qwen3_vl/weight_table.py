"""The table of names: which tensor of a Hugging Face checkpoint fills which block of which parameter of ours.

``RULES`` says so once; ``vcap_jax.models.weight_map`` says how it is read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.two_towers import ConfigT, TextT, TwoTowerModel
from vcap_jax.models.weight_map import Rule, Shape, WeightMap, flat_parameters, spelled_out


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
    # As transformers 5.5.0 and 5.5.3 save Qwen3.5.
    ("model.language_model.visual.", "model.visual."),
    ("model.language_model.language_model.language_model.", "model.language_model."),
    ("model.language_model.lm_head.", "lm_head."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model.language_model."),
    ("language_model.", "model.language_model."),
    ("model.layers.", "model.language_model.layers."),
    ("model.embed_tokens.", "model.language_model.embed_tokens."),
    ("model.norm.", "model.language_model.norm."),
)


def two_tower_map(
    model: type[TwoTowerModel[ConfigT, TextT]],
    config: ConfigT,
    rules: Iterable[Rule],
    columns: Mapping[str, tuple[int, int]],
    *,
    adaptable: str,
    left_out: tuple[str, ...] = (),
) -> WeightMap:
    """The table spelled out for one configuration; allocates nothing.

    columns: of a joined projection, by the name of its part. left_out: beginnings of the names of what a checkpoint has
    besides. Some exporters add what the model derives: a tied head, rotary frequencies.
    """
    vision, tied = config.vision, config.tie_word_embeddings
    shapes = {path: leaf.shape for path, leaf in flat_parameters(model.abstract(config)).items()}

    def convolution(block: Shape) -> Shape:
        if block[0] != vision.patch_dim:
            return block[-1], 1, block[0]  # each channel's own
        return block[-1], vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size

    def derived(name: str) -> bool:
        return (tied and name == HEAD) or name.startswith(left_out) or name.endswith(".inv_freq")

    return WeightMap(
        spelled_out(rules, shapes, columns=columns.__getitem__, convolution=convolution),
        canonical_name,
        derived,
        copies=((HEAD, EMBEDDING),) if tied else (),
        adaptable=adaptable,
    )


def canonical_name(name: str) -> str:
    """The published spelling of a tensor's name, from any of the older ones."""
    for older, published in _OLDER_PREFIXES:
        if name.startswith(older):
            return published + name[len(older) :]
    return name


@functools.cache
def weight_map(config: Qwen3VLConfig) -> WeightMap:
    """See ``two_tower_map``."""
    text = config.text
    queries, keys = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    columns = {
        "q": (0, queries),
        "k": (queries, queries + keys),
        "v": (queries + keys, queries + 2 * keys),
        "gate": (0, text.intermediate_size),
        "up": (text.intermediate_size, 2 * text.intermediate_size),
    }
    return two_tower_map(Qwen3VL, config, RULES, columns, adaptable="text.layers.")
