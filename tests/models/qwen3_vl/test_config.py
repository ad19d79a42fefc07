"""Configurations: the published ones, both spellings of the rotary settings, and refusals by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.qwen3_vl import parity_cases
from vcap_jax.models.qwen3_vl import published
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig, TextConfig, VisionConfig


@pytest.mark.parametrize("size", list(published.CONFIGS))
def test_published_configuration_is_read(size: str) -> None:
    values = published.CONFIGS[size]
    config = Qwen3VLConfig.from_dict(values)
    assert config.tie_word_embeddings is values["tie_word_embeddings"]
    assert config.text.hidden_size == values["text_config"]["hidden_size"]
    assert config.text.rope_theta == 5_000_000
    assert config.text.mrope_section == (24, 20, 20)
    assert config.vision.deepstack_visual_indexes == tuple(
        values["vision_config"]["deepstack_visual_indexes"]
    )
    assert config.vision.patch_dim == 3 * 2 * 16 * 16
    assert hash(config) == hash(Qwen3VLConfig.from_dict(copy.deepcopy(values)))


@pytest.mark.parametrize("size", list(published.CONFIGS))
def test_written_configuration_is_the_published_one(size: str) -> None:
    """Every entry we write is the one published; what we leave out does not shape the model."""
    values = published.CONFIGS[size]
    written = Qwen3VLConfig.from_dict(values).to_dict()
    not_ours = {"attention_dropout", "dtype", "use_cache", "transformers_version"}
    for section in ("text_config", "vision_config"):
        assert written[section] == {k: v for k, v in values[section].items() if k not in not_ours}
    assert {k: v for k, v in written.items() if "_config" not in k} == {
        k: v for k, v in values.items() if "_config" not in k and k not in not_ours
    }


def test_both_spellings_of_the_rotary_settings() -> None:
    old = published.CONFIGS["8B"]
    new = copy.deepcopy(old)
    text = new["text_config"]
    text["rope_parameters"] = {**text.pop("rope_scaling"), "rope_theta": text.pop("rope_theta")}
    new["vision_config"]["rope_parameters"] = {"rope_type": "axial", "rope_theta": 10000.0}
    assert Qwen3VLConfig.from_dict(new) == Qwen3VLConfig.from_dict(old)
    # Of both the older takes the newer one's place, as in the public class: what scales is not passed over.
    text["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0}
    with pytest.raises(ValueError, match="yarn"):
        Qwen3VLConfig.from_dict(new)
    text["rope_scaling"] = {**text["rope_parameters"], "rope_theta": 77.0}
    assert Qwen3VLConfig.from_dict(new).text.rope_theta == 77.0


@pytest.mark.parametrize("name", list(parity_cases.MODELS))
def test_round_trip_through_a_folder(name: str, tmp_path: Path) -> None:
    config = parity_cases.MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert Qwen3VLConfig.from_pretrained(tmp_path) == config
    assert Qwen3VLConfig.from_pretrained(tmp_path / "config.json") == config


@pytest.mark.parametrize("name", list(parity_cases.MODELS))
def test_transformers_reads_what_we_write(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = parity_cases.MODELS[name]
    public = transformers.Qwen3VLConfig(**config.to_dict())
    assert public.text_config.rope_parameters["rope_theta"] == config.text.rope_theta
    assert public.text_config.rope_parameters["mrope_section"] == list(config.text.mrope_section)
    assert public.vision_config.rope_parameters["rope_theta"] == config.vision.rope_theta
    assert Qwen3VLConfig.from_dict(public.to_dict()) == config


def test_top_level_tie_is_found_in_the_text_section() -> None:
    values = copy.deepcopy(published.CONFIGS["2B"])
    del values["tie_word_embeddings"]
    values["text_config"]["tie_word_embeddings"] = True
    assert Qwen3VLConfig.from_dict(values).tie_word_embeddings


def changed(section: str, **entries: Any) -> dict[str, Any]:
    values = copy.deepcopy(published.CONFIGS["8B"])
    values[section].update(entries)
    return values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**published.CONFIGS["8B"], "model_type": "qwen3_vl_moe"}, "qwen3_vl_moe"),
        ({**published.CONFIGS["8B"], "text_config": None}, "text_config"),
        ({**published.CONFIGS["8B"], "quantization_config": {"quant_method": "fp8"}}, "quantised"),
        (changed("text_config", quantization_config={"quant_method": "gptq"}), "quantised"),
        ({**published.CONFIGS["8B"], "compression_config": {"format": "float-quantized"}}, "quantised"),
        (changed("text_config", rope_scaling={"rope_type": "yarn", "factor": 4.0}), "yarn"),
        (changed("text_config", rope_scaling={"mrope_interleaved": False}), "mrope_interleaved"),
        (changed("text_config", hidden_act="swish2"), "swish2"),
        (changed("text_config", num_key_value_heads=5), "num_key_value_heads"),
        (changed("text_config", num_hidden_layers=0), "num_hidden_layers"),
        (changed("text_config", num_hidden_layers=2), "deepstack_visual_indexes"),
        (changed("vision_config", deepstack_visual_indexes=[16, 8]), "deepstack_visual_indexes"),
        (changed("vision_config", deepstack_visual_indexes=[8, 27]), "deepstack_visual_indexes"),
        (changed("vision_config", num_position_embeddings=2305), "num_position_embeddings"),
        (changed("vision_config", out_hidden_size=1), "out_hidden_size"),
        (changed("vision_config", num_heads=7), "num_heads"),
        (changed("vision_config", patch_size=[16, 14]), "patch_size"),
        (changed("text_config", rms_norm_eps="small"), "text_config: rms_norm_eps is 'small'"),
        (
            changed("text_config", rope_scaling=[24, 20, 20]),
            "text_config: rope_scaling is .*not a dictionary",
        ),
        (changed("text_config", rope_scaling={"mrope_section": 24}), "text_config: mrope_section is 24"),
        (
            changed("vision_config", deepstack_visual_indexes="8, 16"),
            "vision_config: deepstack_visual_indexes",
        ),
        ({**published.CONFIGS["8B"], "image_token_id": [151_655]}, "config: image_token_id is"),
    ],
)
def test_refusals_name_the_entry(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Qwen3VLConfig.from_dict(values)


def test_refusals_of_direct_construction() -> None:
    with pytest.raises(ValueError, match="head_dim"):
        TextConfig(head_dim=7)
    with pytest.raises(ValueError, match="mrope_section"):
        TextConfig(mrope_section=(1, 2))
    with pytest.raises(ValueError, match="depth"):
        VisionConfig(depth=True)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        Qwen3VLConfig.from_pretrained(tmp_path)
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        Qwen3VLConfig.from_pretrained(tmp_path)
    broken.write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json: \[\], where an object is wanted: restore it"):
        Qwen3VLConfig.from_pretrained(tmp_path)
    broken.write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=r"config\.json: .*llama"):
        Qwen3VLConfig.from_pretrained(tmp_path)
