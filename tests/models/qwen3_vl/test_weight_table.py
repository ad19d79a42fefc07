"""Checkpoints: the published names and shapes, both directions, and one error that lists everything."""

from __future__ import annotations

import dataclasses
import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from tests.live_reference import require_torch
from tests.models.public_arrays import public_arrays, public_shapes, set_public_arrays
from tests.models.qwen3_vl import make_goldens
from tests.models.qwen3_vl import parity_cases as cases
from tests.models.qwen3_vl.checkpoints import load_pretrained, save_pretrained
from vcap_jax.models.errors import CheckpointError
from vcap_jax.models.qwen3_vl import published
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.weight_table import weight_map
from vcap_jax.models.weight_map import flat_parameters
from vcap_jax.models.weights import INDEX_FILE, SINGLE_FILE, write_beside

CONFIG = cases.MODELS["untied"]


def make_model(config: Qwen3VLConfig = CONFIG) -> Qwen3VL:
    return Qwen3VL(config, rngs=nnx.Rngs(0))


def parameters(model: Qwen3VL) -> dict[str, np.ndarray]:
    return {
        ".".join(map(str, path)): np.asarray(leaf.get_value())
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }


def assert_equal_models(ours: Qwen3VL, theirs: Qwen3VL) -> None:
    ours_arrays, their_arrays = parameters(ours), parameters(theirs)
    assert ours_arrays.keys() == their_arrays.keys()
    for path, array in ours_arrays.items():
        np.testing.assert_array_equal(array, their_arrays[path], err_msg=path)


@pytest.mark.parametrize("size", list(published.CONFIGS))
def test_names_and_shapes_of_the_published_checkpoints(size: str) -> None:
    """Against the tensors the public model declares for the same configuration (golden), and the public
    page's count.
    """
    config = Qwen3VLConfig.from_dict(published.CONFIGS[size])
    shapes = public_shapes(weight_map(config))
    assert make_goldens.by_layers(shapes) == make_goldens.load_published()[size]
    count = sum(math.prod(shape) for shape in shapes.values())
    assert count / 1e9 == pytest.approx(published.BILLIONS[size], rel=2.5e-3)
    assert sum(leaf.size for leaf in flat_parameters(Qwen3VL.abstract(config)).values()) == count


@pytest.mark.live
@pytest.mark.parametrize("size", list(published.CONFIGS))
def test_live_names_and_shapes(size: str) -> None:
    require_torch()
    config = Qwen3VLConfig.from_dict(published.CONFIGS[size])
    assert public_shapes(weight_map(config)) == make_goldens.public_shapes(config)


@pytest.mark.parametrize("shard_bytes", [10**9, 40_000])
@pytest.mark.parametrize("name", list(cases.MODELS))
def test_round_trip_is_exact(name: str, shard_bytes: int, tmp_path: Path) -> None:
    model = make_model(cases.MODELS[name])
    save_pretrained(model, tmp_path, max_shard_bytes=shard_bytes)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    if shard_bytes == 10**9:
        assert files == [SINGLE_FILE]
        assert not (tmp_path / INDEX_FILE).exists()
    else:
        index = json.loads((tmp_path / INDEX_FILE).read_text())
        assert sorted(set(index["weight_map"].values())) == files
        assert len(files) > 2
        assert index["metadata"]["total_size"] == 4 * sum(array.size for array in parameters(model).values())
        for file in files:
            sizes = [array.nbytes for array in load_file(tmp_path / file).values()]
            assert sum(sizes) <= shard_bytes or len(sizes) == 1
    loaded = load_pretrained(tmp_path)
    assert loaded.config == model.config
    assert_equal_models(loaded, model)


def test_one_more_tensor_is_named_by_the_index_where_there_is_one(tmp_path: Path) -> None:
    """Else nobody reads it."""
    save_pretrained(make_model(CONFIG), tmp_path, max_shard_bytes=40_000)
    write_beside(tmp_path, "model-more.safetensors", "more.weight", np.ones(2, np.float32))
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    assert index["weight_map"]["more.weight"] == "model-more.safetensors"
    assert len(index["weight_map"]) > 10


def test_public_arrays_lie_as_the_public_model_has_them(tmp_path: Path) -> None:
    arrays = cases.weights(CONFIG, seed=1)
    write(tmp_path / "theirs", arrays)
    model = load_pretrained(tmp_path / "theirs")
    save_pretrained(model, tmp_path / "ours")
    saved = load_file(tmp_path / "ours" / SINGLE_FILE)
    assert saved.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)
    queries = arrays["model.language_model.layers.2.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(
        model.text.layers.attention.qkv.kernel[...][2, :, : len(queries)], queries.T
    )


def test_types_on_disk_and_in_memory(tmp_path: Path) -> None:
    save_pretrained(make_model(), tmp_path, dtype=jnp.bfloat16)
    assert {array.dtype for array in load_file(tmp_path / SINGLE_FILE).values()} == {jnp.dtype("bfloat16")}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    for dtype in (jnp.float32, jnp.bfloat16):
        model = load_pretrained(tmp_path, dtype=jnp.bfloat16, param_dtype=dtype)
        assert {array.dtype for array in parameters(model).values()} == {jnp.dtype(dtype)}


def test_placement_reads_only_what_a_device_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = jax.devices()
    assert len(devices) >= 8  # tests/conftest.py simulates them
    model = make_model()
    save_pretrained(model, tmp_path)
    mesh = jax.sharding.Mesh(np.array(devices[:8]), ("fsdp",))
    blocks: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    make_array = jax.make_array_from_callback

    def spy(
        shape: tuple[int, ...], sharding: jax.sharding.Sharding, read: Callable[..., np.ndarray]
    ) -> jax.Array:
        def watched(index: tuple[slice, ...]) -> np.ndarray:
            block = read(index)
            blocks.setdefault(shape, set()).add(block.shape)
            return block

        return make_array(shape, sharding, watched)

    def place(path: str, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        axes = [i for i, size in enumerate(shape) if size % 8 == 0]
        spec = [None] * len(shape)
        if axes:
            spec[axes[-1]] = "fsdp"
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))

    monkeypatch.setattr(jax, "make_array_from_callback", spy)
    loaded = load_pretrained(tmp_path, sharding=place)
    assert_equal_models(loaded, model)
    kernel = loaded.text.layers.attention.qkv.kernel[...]
    assert kernel.sharding.spec[2] == "fsdp"
    layers, width, columns = kernel.shape
    assert [array.shape for array in parameters(model).values()].count(kernel.shape) == 1
    assert blocks[kernel.shape] == {(layers, width, columns // 8)}


def test_never_two_copies_in_memory(tmp_path: Path) -> None:
    text = dataclasses.replace(CONFIG.text, num_hidden_layers=16, intermediate_size=2048, vocab_size=4096)
    model = make_model(dataclasses.replace(CONFIG, text=text))
    save_pretrained(model, tmp_path, max_shard_bytes=4_000_000)
    arrays = parameters(model)
    total, largest = sum(a.nbytes for a in arrays.values()), max(a.nbytes for a in arrays.values())
    tracemalloc.start()
    load_pretrained(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < total + 0.5 * largest


def write(folder: Path, arrays: dict[str, np.ndarray], config: Qwen3VLConfig = CONFIG) -> None:
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / SINGLE_FILE)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))


@pytest.mark.parametrize(
    ("text", "visual", "head"),
    [
        ("model.language_model.", "model.visual.", "lm_head."),
        ("model.", "visual.", "lm_head."),
        ("language_model.model.", "visual.", "language_model.lm_head."),
        # Qwen3.5 as transformers 5.5.0 and 5.5.3 save it
        ("model.language_model.language_model.language_model.", "model.language_model.visual.", "lm_head."),
        ("model.language_model.", "model.language_model.visual.", "lm_head."),
    ],
)
def test_older_prefixes(text: str, visual: str, head: str, tmp_path: Path) -> None:
    model = make_model()
    renamed = {}
    for name, array in public_arrays(model.weight_map, model).items():
        for now, older in (("model.language_model.", text), ("model.visual.", visual), ("lm_head.", head)):
            if name.startswith(now):
                renamed[older + name.removeprefix(now)] = array
    write(tmp_path, renamed)
    assert_equal_models(load_pretrained(tmp_path), model)


def test_one_error_lists_every_problem(tmp_path: Path) -> None:
    arrays = public_arrays(weight_map(CONFIG), make_model())
    missing = ["lm_head.weight", "model.visual.blocks.3.attn.qkv.bias"]
    for name in missing:
        del arrays[name]
    arrays["model.language_model.layers.9.extra"] = np.zeros(3, np.float32)
    arrays["visual.pos_embed.weight"] = arrays["model.visual.pos_embed.weight"]
    arrays["model.visual.merger.norm.weight"] = np.zeros((2, 2), np.float32)
    write(tmp_path, arrays)
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(tmp_path)
    lines = str(caught.value).splitlines()
    assert "5 problems" in lines[0]
    assert [line.strip().split(" ")[0:2] for line in lines[1:]].count(["missing:", "lm_head.weight"]) == 1
    assert any(line.startswith("  missing: model.visual.blocks.3.attn.qkv.bias") for line in lines)
    assert any(line.startswith("  unexpected: model.language_model.layers.9.extra") for line in lines)
    assert any(line.startswith("  unexpected: ") and "the same tensor as" in line for line in lines)
    assert any("model.visual.merger.norm.weight is [2, 2], expected [24]" in line for line in lines)


def test_missing_shards_are_listed_once(tmp_path: Path) -> None:
    save_pretrained(make_model(), tmp_path, max_shard_bytes=40_000)
    files = sorted(tmp_path.glob("*.safetensors"))
    files[1].unlink()
    files[2].unlink()
    with pytest.raises(CheckpointError) as caught:
        load_pretrained(tmp_path)
    assert "2 problems" in str(caught.value)
    assert files[1].name in str(caught.value)
    assert files[2].name in str(caught.value)


def test_a_stored_head_that_is_not_the_tied_one_is_refused(tmp_path: Path) -> None:
    """Trained apart from the embeddings it would be dropped; the public class computes with it."""
    tied = cases.MODELS["tied"]
    arrays = public_arrays(weight_map(tied), make_model(tied))
    arrays["lm_head.weight"] = arrays["model.language_model.embed_tokens.weight"].copy()
    arrays["lm_head.weight"][-1, 0] += 1
    write(tmp_path, arrays, tied)
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to false"):
        load_pretrained(tmp_path)
    write(tmp_path, arrays | {"lm_head.weight": arrays["lm_head.weight"][:-1]}, tied)
    with pytest.raises(CheckpointError, match=r"wrong shape: lm_head\.weight"):
        load_pretrained(tmp_path)


def test_tied_head_may_be_stored_and_an_untied_one_must_be(tmp_path: Path) -> None:
    tied = cases.MODELS["tied"]
    model = make_model(tied)
    arrays = public_arrays(weight_map(tied), model)
    assert "lm_head.weight" not in arrays
    arrays["lm_head.weight"] = arrays["model.language_model.embed_tokens.weight"]
    write(tmp_path, arrays, tied)
    assert_equal_models(load_pretrained(tmp_path), model)
    # Whoever keeps one of two shared tensors may keep either.
    del arrays["model.language_model.embed_tokens.weight"]
    arrays["model.visual.rotary_pos_emb.inv_freq"] = np.ones(4, np.float32)
    write(tmp_path, arrays, tied)
    assert_equal_models(load_pretrained(tmp_path), model)


def test_folders_without_weights_and_with_foreign_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    with pytest.raises(FileNotFoundError, match=r"expected model\.safetensors"):
        load_pretrained(tmp_path)
    model = make_model()
    save_pretrained(model, tmp_path, max_shard_bytes=40_000)
    with pytest.raises(FileExistsError, match="model-00001-of"):
        save_pretrained(model, tmp_path)
    save_pretrained(model, tmp_path, max_shard_bytes=40_000)  # the same files are simply written again


def test_damaged_files_are_named_with_the_remedy(tmp_path: Path) -> None:
    save_pretrained(make_model(), tmp_path)
    file = tmp_path / SINGLE_FILE
    whole = file.read_bytes()
    for left in (whole[: len(whole) // 2], whole[:5], b""):
        file.write_bytes(left)
        with pytest.raises(
            CheckpointError, match=r"model\.safetensors is damaged .* copy or download it again"
        ):
            load_pretrained(tmp_path)
    for damaged in ("[]", '{"weight_map": {}}'):
        (tmp_path / INDEX_FILE).write_text(damaged)
        with pytest.raises(CheckpointError, match=r"index\.json is no index of weights"):
            load_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff{")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.int8, jnp.uint8])
def test_numbers_that_need_a_scale_are_refused_whatever_config_json_says(tmp_path: Path, dtype: Any) -> None:
    arrays = public_arrays(weight_map(CONFIG), make_model())
    name = "model.language_model.layers.2.mlp.up_proj.weight"
    write(tmp_path, arrays | {name: arrays[name].astype(dtype)})
    with pytest.raises(
        CheckpointError, match=rf"\(1 problems\):\n  quantised: {name} is stored as [FIU]8.*bfloat16"
    ):
        load_pretrained(tmp_path)
    write(tmp_path, arrays | {name: arrays[name].astype(np.float64)})
    assert_equal_models(load_pretrained(tmp_path), make_model())


def test_two_checkpoints_in_a_folder_are_refused(tmp_path: Path) -> None:
    """The public class takes the single file and not the index: whoever trains would not know which it was."""
    model = make_model()
    save_pretrained(model, tmp_path, max_shard_bytes=40_000)
    write(tmp_path, public_arrays(weight_map(CONFIG), make_model()))
    with pytest.raises(
        CheckpointError, match=r"two checkpoints: model\.safetensors, and other files that model"
    ):
        load_pretrained(tmp_path)
    (tmp_path / SINGLE_FILE).unlink()
    assert_equal_models(load_pretrained(tmp_path), model)


def test_an_adapter_beside_a_whole_model_is_refused(tmp_path: Path) -> None:
    """The public class adds it: whoever trains would start from something else."""
    save_pretrained(make_model(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    load_pretrained(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"an adapter beside it .* to a folder of their own, .*lora\.adapter"
    ):
        load_pretrained(tmp_path)


def test_an_index_may_name_the_single_file_but_no_number(tmp_path: Path) -> None:
    arrays = public_arrays(weight_map(CONFIG), make_model())
    write(tmp_path, arrays)
    index = tmp_path / INDEX_FILE
    index.write_text(json.dumps({"weight_map": dict.fromkeys(arrays, SINGLE_FILE)}))
    assert_equal_models(load_pretrained(tmp_path), make_model())
    index.write_text(json.dumps({"weight_map": dict.fromkeys(arrays, 1)}))
    with pytest.raises(CheckpointError, match=r"index\.json is no index of weights"):
        load_pretrained(tmp_path)


@pytest.mark.live
@pytest.mark.parametrize("name", list(cases.MODELS))
def test_live_transformers_loads_our_export(name: str, tmp_path: Path) -> None:
    torch = require_torch()
    import transformers

    config = cases.MODELS[name]
    model = make_model(config)
    set_public_arrays(model, cases.weights(config, seed=1))
    save_pretrained(model, tmp_path, max_shard_bytes=40_000)
    public, report = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    inputs = make_goldens.torch_inputs([cases.raw_prompt("mixed", config)])
    with torch.no_grad():
        logits = public(**inputs).logits[0].numpy()
    np.testing.assert_allclose(logits, make_goldens.load(name)["logits/mixed"], rtol=1e-4, atol=1e-5)
