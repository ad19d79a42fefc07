"""Configurations: the published ones, what transformers makes of ours, and refusals by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.qwen3_5 import parity_cases
from vcap_jax.models.qwen3_5 import published
from vcap_jax.models.qwen3_5.config import FULL, LINEAR, Qwen35Config, TextConfig


@pytest.mark.parametrize("size", list(published.CONFIGS))
def test_published_configuration_is_read(size: str) -> None:
    values = published.CONFIGS[size]
    config = Qwen35Config.from_dict(values)
    assert config.tie_word_embeddings is values["tie_word_embeddings"]
    assert config.text.rope_theta == 10_000_000
    assert config.text.rotary_dim == 64
    assert config.text.layer_types[:4] == (LINEAR, LINEAR, LINEAR, FULL)
    assert len(config.text.layer_types) == config.text.num_hidden_layers
    assert config.vision.deepstack_visual_indexes == ()
    assert config.head_sizes["text"] == 256
    assert hash(config) == hash(Qwen35Config.from_dict(copy.deepcopy(values)))


@pytest.mark.parametrize("name", list(parity_cases.MODELS))
def test_round_trip_through_a_folder(name: str, tmp_path: Path) -> None:
    config = parity_cases.MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert Qwen35Config.from_pretrained(tmp_path) == config


@pytest.mark.parametrize("name", list(parity_cases.MODELS))
def test_transformers_reads_what_we_write(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = parity_cases.MODELS[name]
    public = transformers.AutoConfig.for_model(**config.to_dict())
    assert public.text_config.layer_types == list(config.text.layer_types)
    assert public.text_config.rope_parameters["partial_rotary_factor"] == config.text.partial_rotary_factor
    assert Qwen35Config.from_dict(public.to_dict()) == config


def changed(section: str, **entries: Any) -> dict[str, Any]:
    values = copy.deepcopy(published.CONFIGS["9B"])
    values[section].update(entries)
    return values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**published.CONFIGS["9B"], "model_type": "qwen3_5_moe"}, "qwen3_5_moe"),
        ({**published.CONFIGS["9B"], "quantization_config": {"quant_method": "fp8"}}, "quantised"),
        (changed("text_config", quantization_config={"quant_method": "gptq"}), "quantised"),
        (changed("text_config", attention_bias=True), "attention_bias"),
        (changed("text_config", attn_output_gate=False), "attn_output_gate"),
        (changed("text_config", rope_parameters={"rope_type": "yarn"}), "yarn"),
        (changed("text_config", linear_num_value_heads=24), "linear_num_value_heads"),
        (changed("text_config", num_hidden_layers=30), "num_hidden_layers"),
        (changed("text_config", full_attention_interval=1), "full_attention_interval"),
        (changed("text_config", layer_types=[LINEAR] * 32), "layer_types"),
        (changed("text_config", layer_types=[FULL, LINEAR] * 16), "interval is 1"),
        (changed("vision_config", deepstack_visual_indexes=[8]), "deepstack_visual_indexes"),
        (changed("vision_config", out_hidden_size=1), "out_hidden_size"),
    ],
)
def test_refusals_name_the_entry(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Qwen35Config.from_dict(values)


def test_rotary_pairs_are_whole() -> None:
    with pytest.raises(ValueError, match="partial_rotary_factor"):
        TextConfig(head_dim=12, partial_rotary_factor=0.25)
