"""The table of names of Qwen3.5: which tensor of a Hugging Face checkpoint fills which block of which parameter."""

from __future__ import annotations

import functools

from vcap_jax.models.qwen3_5.config import FULL, LINEAR, Qwen35Config
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_vl.weight_table import EMBEDDING, HEAD, VISION_RULES, two_tower_map
from vcap_jax.models.weight_map import Layout, Rule, WeightMap

_WIDE = ("linear_attn.A_log", "linear_attn.norm.weight")
"""Qwen3.5 is published in bfloat16 but for these: rates of decay multiply over thousands of tokens."""


def rules(config: Qwen35Config) -> tuple[Rule, ...]:
    """The table for one configuration: which layers are of which kind depends on it."""

    def layers(kind: str, stack: str, *of: tuple[str, str, Layout, str | None]) -> list[Rule]:
        numbers = config.text.numbers_of(kind)
        both: tuple[tuple[str, str, Layout, str | None], ...] = (
            ("input_layernorm.weight", "input_norm.scale", "same", None),
            ("post_attention_layernorm.weight", "post_mixer_norm.scale", "same", None),
            ("mlp.gate_proj.weight", "mlp.gate_up.kernel", "linear", "gate"),
            ("mlp.up_proj.weight", "mlp.gate_up.kernel", "linear", "up"),
            ("mlp.down_proj.weight", "mlp.down.kernel", "linear", None),
        )
        return [
            Rule(
                f"model.language_model.layers.{{i}}.{name}",
                f"text.{stack}.{path}",
                layout,
                part,
                numbers,
                wide=name in _WIDE,
            )
            for name, path, layout, part in (*both, *of)
        ]

    return (
        *VISION_RULES,
        Rule(EMBEDDING, "text.embed_tokens"),
        *layers(
            LINEAR,
            "delta_layers",
            ("linear_attn.in_proj_qkv.weight", "delta.enter.kernel", "linear", "channels"),
            ("linear_attn.in_proj_z.weight", "delta.enter.kernel", "linear", "z"),
            ("linear_attn.in_proj_b.weight", "delta.enter.kernel", "linear", "b"),
            ("linear_attn.in_proj_a.weight", "delta.enter.kernel", "linear", "a"),
            ("linear_attn.conv1d.weight", "delta.conv", "conv", None),
            ("linear_attn.A_log", "delta.log_rate", "same", None),
            ("linear_attn.dt_bias", "delta.rate_bias", "same", None),
            ("linear_attn.norm.weight", "delta.norm.scale", "same", None),
            ("linear_attn.out_proj.weight", "delta.leave.kernel", "linear", None),
        ),
        *layers(
            FULL,
            "attention_layers",
            ("self_attn.q_proj.weight", "attention.qkv.kernel", "linear", "q"),
            ("self_attn.k_proj.weight", "attention.qkv.kernel", "linear", "k"),
            ("self_attn.v_proj.weight", "attention.qkv.kernel", "linear", "v"),
            ("self_attn.o_proj.weight", "attention.out.kernel", "linear", None),
            ("self_attn.q_norm.weight", "attention.q_norm.scale", "same", None),
            ("self_attn.k_norm.weight", "attention.k_norm.scale", "same", None),
        ),
        Rule("model.language_model.norm.weight", "text.norm.scale"),
        Rule(HEAD, "lm_head"),
    )


@functools.cache
def weight_map(config: Qwen35Config) -> WeightMap:
    """See ``two_tower_map``. Captions are drawn without the layer that guesses several tokens ahead (``mtp``)."""
    text = config.text
    queries, keys = 2 * text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    channels, heads = text.linear_channels, text.linear_num_value_heads
    gates = channels + heads * text.linear_value_head_dim
    columns = {
        "q": (0, queries),
        "k": (queries, queries + keys),
        "v": (queries + keys, queries + 2 * keys),
        "channels": (0, channels),
        "z": (channels, gates),
        "b": (gates, gates + heads),
        "a": (gates + heads, gates + 2 * heads),
        "gate": (0, text.intermediate_size),
        "up": (text.intermediate_size, 2 * text.intermediate_size),
    }
    return two_tower_map(Qwen35, config, rules(config), columns, adaptable="text.", left_out=("mtp.",))
