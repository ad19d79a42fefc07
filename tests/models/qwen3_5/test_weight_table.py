"""Checkpoints: the published names and shapes, and both directions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from tests.live_reference import require_torch
from tests.models.public_arrays import public_shapes
from tests.models.qwen3_5 import make_goldens
from tests.models.qwen3_5 import parity_cases as cases
from tests.models.qwen3_vl import make_goldens as vl_goldens
from vcap_jax.kernels.attention import CHUNKED
from vcap_jax.models.errors import CheckpointError
from vcap_jax.models.family import ModelSettings
from vcap_jax.models.lora import LoraConfig, target_parts
from vcap_jax.models.qwen3_5 import published
from vcap_jax.models.qwen3_5.config import Qwen35Config
from vcap_jax.models.qwen3_5.family import Qwen35Family
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_5.weight_table import weight_map
from vcap_jax.models.weight_map import flat_parameters
from vcap_jax.models.weights import stored_types

CONFIG = cases.MODELS["untied"]
SETTINGS = ModelSettings(dtype=jnp.float32, param_dtype=jnp.float32, remat="none", kernel=CHUNKED)


@pytest.mark.parametrize("size", list(published.CONFIGS))
def test_names_and_shapes_of_the_published_checkpoints(size: str) -> None:
    """Against the tensors that the public model declares for the same configuration (golden)."""
    config = Qwen35Config.from_dict(published.CONFIGS[size])
    shapes = public_shapes(weight_map(config))
    assert make_goldens.by_layers(shapes) == make_goldens.load_published()[size]
    count = sum(math.prod(shape) for shape in shapes.values())
    assert count / 1e9 == pytest.approx(published.BILLIONS[size], abs=0.005)
    assert sum(leaf.size for leaf in flat_parameters(Qwen35.abstract(config)).values()) == count


@pytest.mark.live
@pytest.mark.parametrize("size", list(published.CONFIGS))
def test_live_names_and_shapes(size: str) -> None:
    require_torch()
    config = Qwen35Config.from_dict(published.CONFIGS[size])
    assert public_shapes(weight_map(config)) == vl_goldens.public_shapes(config)


@pytest.mark.parametrize("name", list(cases.MODELS))
def test_round_trip_is_exact(name: str, tmp_path: Path) -> None:
    family, config = Qwen35Family(), cases.MODELS[name]
    model = Qwen35(config, rngs=nnx.Rngs(0), dtype=jnp.float32)
    family.save(model, tmp_path, dtype=None)
    loaded = family.load(tmp_path, SETTINGS, None)
    assert loaded.config == config
    ours, theirs = flat_parameters(model), flat_parameters(loaded)
    assert ours.keys() == theirs.keys()
    for path, array in ours.items():
        np.testing.assert_array_equal(array, theirs[path], err_msg=path)


def test_rates_of_decay_are_stored_in_float32_beside_bfloat16_as_they_are_published(tmp_path: Path) -> None:
    """Rounded, a head that forgets in thousands of tokens would forget at another rate; and nothing else needs them."""
    family, model = Qwen35Family(), Qwen35(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.float32)
    delta = model.text.delta_layers.delta
    rates = np.random.default_rng(0).normal(size=delta.log_rate.shape).astype(np.float32)
    delta.log_rate[...] = jnp.asarray(rates)
    family.save(model, tmp_path, dtype=jnp.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    wide = {".".join(name.split(".")[-2:]) for name, array in stored.items() if array.dtype == np.float32}
    assert wide == {"linear_attn.A_log", "norm.weight"}
    assert stored["model.language_model.norm.weight"].dtype == jnp.bfloat16
    assert stored["model.language_model.layers.0.linear_attn.norm.weight"].dtype == np.float32
    assert stored_types(tmp_path, model.weight_map) == {np.dtype(jnp.bfloat16)}
    loaded = family.load(tmp_path, replace(SETTINGS, param_dtype=jnp.bfloat16), None)
    np.testing.assert_array_equal(loaded.text.delta_layers.delta.log_rate[...], rates)


def test_public_arrays_lie_as_the_public_model_has_them(tmp_path: Path) -> None:
    """A checkpoint may bring the layer that guesses several tokens ahead, and no tensor that is not known."""
    family, arrays = Qwen35Family(), cases.weights(CONFIG, seed=1)
    family.save(Qwen35(CONFIG, rngs=nnx.Rngs(0)), tmp_path / "theirs", dtype=None)
    file = tmp_path / "theirs" / "model.safetensors"
    save_file({**arrays, "mtp.fc.weight": np.zeros((2, 2), np.float32)}, file)
    model = family.load(tmp_path / "theirs", SETTINGS, None)
    # Layers 4, 5 and 6 are the second block's gated delta rules, layer 7 its attention.
    prefix = "model.language_model.layers"
    np.testing.assert_array_equal(
        model.text.delta_layers.delta.conv[...][4].T, arrays[f"{prefix}.5.linear_attn.conv1d.weight"][:, 0]
    )
    queries = arrays[f"{prefix}.7.self_attn.q_proj.weight"]
    qkv = model.text.attention_layers.attention.qkv.kernel[...]
    np.testing.assert_array_equal(qkv[1, :, : len(queries)], queries.T)
    family.save(model, tmp_path / "ours", dtype=None)
    saved = load_file(tmp_path / "ours" / "model.safetensors")
    assert saved.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)
    save_file({**arrays, "extra": np.zeros(2, np.float32)}, file)
    with pytest.raises(CheckpointError, match="unexpected: extra"):
        family.load(tmp_path / "theirs", SETTINGS, None)


def test_adapters_go_to_the_matrices_of_both_kinds_of_layers() -> None:
    parts = target_parts(weight_map(CONFIG), LoraConfig().targets)
    assert {path: len(columns) for path, columns in parts.items()} == {
        "text.attention_layers.attention.qkv": 3,
        "text.attention_layers.attention.out": 1,
        "text.attention_layers.mlp.gate_up": 2,
        "text.attention_layers.mlp.down": 1,
        "text.delta_layers.mlp.gate_up": 2,
        "text.delta_layers.mlp.down": 1,
    }
