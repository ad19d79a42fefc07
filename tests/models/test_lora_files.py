"""Adapter folders: PEFT's names, there and back, and clear refusals; the tests marked live ask PEFT itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.live_reference import require_torch
from tests.models.qwen3_vl.checkpoints import save_pretrained
from tests.models.test_lora import adapted, hidden
from tests.tiny_policy import tiny_model, tiny_prompts
from vcap_jax.models.lora import LoraConfig, attach
from vcap_jax.models.lora_files import CONFIG_FILE, WEIGHTS_FILE, AdapterError, load_adapter, save_adapter
from vcap_jax.models.qwen3_vl.model import Qwen3VL

LORA = LoraConfig(rank=2, alpha=3.0, targets=("q_proj", "v_proj", "up_proj", "o_proj"))
FIRST = "base_model.model.model.language_model.layers.0"


@pytest.fixture
def folder(tmp_path) -> Path:
    save_adapter(adapted(LORA), tmp_path / "adapter", LORA, base="/models/base")
    return tmp_path / "adapter"


def started_from(folder: Path, lora: LoraConfig = LORA) -> Qwen3VL:
    model = tiny_model()
    attach(model, lora, values=load_adapter(folder, model.weight_map, lora))
    return model


def rewrite(folder: Path, **changes: object) -> None:
    values = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps(values | changes))


def test_there_and_back(folder):
    np.testing.assert_array_equal(hidden(started_from(folder)), hidden(adapted(LORA)))


def test_matrices_that_are_joined_here_have_halves_of_their_own(folder):
    """Else each would be what the last one is."""
    arrays = load_file(folder / WEIGHTS_FILE)
    q, v = (arrays[f"{FIRST}.self_attn.{name}.lora_A.weight"] for name in ("q_proj", "v_proj"))
    assert not np.array_equal(q, v)
    values = load_adapter(folder, tiny_model().weight_map, LORA)
    (halves,) = (value for path, value in values.items() if path.endswith("qkv.adapter.a"))
    np.testing.assert_array_equal(halves[0], np.concatenate([q, v]).T)


def test_names_and_shapes_are_pefts(folder):
    arrays = load_file(folder / WEIGHTS_FILE)
    assert {name: array.shape for name, array in arrays.items() if name.startswith(FIRST)} == {
        f"{FIRST}.self_attn.q_proj.lora_A.weight": (2, 16),
        f"{FIRST}.self_attn.q_proj.lora_B.weight": (16, 2),
        f"{FIRST}.self_attn.v_proj.lora_A.weight": (2, 16),
        f"{FIRST}.self_attn.v_proj.lora_B.weight": (8, 2),
        f"{FIRST}.self_attn.o_proj.lora_A.weight": (2, 16),
        f"{FIRST}.self_attn.o_proj.lora_B.weight": (16, 2),
        f"{FIRST}.mlp.up_proj.lora_A.weight": (2, 16),
        f"{FIRST}.mlp.up_proj.lora_B.weight": (24, 2),
    }
    values = json.loads((folder / CONFIG_FILE).read_text())
    assert values["peft_type"] == "LORA"
    assert values["base_model_name_or_path"] == "/models/base"
    assert (values["r"], values["lora_alpha"], values["use_rslora"]) == (2, 3, False)
    assert values["target_modules"] == ["o_proj", "q_proj", "up_proj", "v_proj"]


def test_older_names_are_understood(folder):
    arrays = load_file(folder / WEIGHTS_FILE)
    older = {
        name.replace("model.language_model.", "model.").replace(".weight", ".default.weight"): array
        for name, array in arrays.items()
    }
    save_file(older, folder / WEIGHTS_FILE)
    np.testing.assert_array_equal(hidden(started_from(folder)), hidden(adapted(LORA)))


def test_a_tensor_under_two_names_is_refused(folder):
    """The last one counted, without a word."""
    arrays = load_file(folder / WEIGHTS_FILE)
    name = f"{FIRST}.mlp.up_proj.lora_B.weight"
    arrays[name.replace(".weight", ".default.weight")] = arrays[name] + 1
    save_file(arrays, folder / WEIGHTS_FILE)
    with pytest.raises(AdapterError, match=r"has .*up_proj\.lora_B\.weight twice, as .*: leave out one"):
        started_from(folder)


def test_other_settings_are_refused_with_those_to_set(folder):
    with pytest.raises(AdapterError, match=r"set model\.lora\.rank=2 model\.lora\.targets="):
        started_from(folder, LoraConfig(rank=4, alpha=3.0))
    for setting, other in (("alpha=3", {"alpha": 6.0}), ("use_rslora=False", {"use_rslora": True})):
        with pytest.raises(AdapterError, match=rf"set model\.lora\.{setting}$"):
            started_from(folder, replace(LORA, **other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "not plain LoRA: use_dora=True"),
        ({"bias": "all"}, "not plain LoRA: bias=all"),
        ({"rank_pattern": {"q_proj": 4}}, "not plain LoRA: rank_pattern="),
        ({"init_lora_weights": "pissa_niter_16"}, "not plain LoRA: init_lora_weights=pissa_niter_16"),
        ({"init_lora_weights": "lora_ga"}, "not plain LoRA: init_lora_weights=lora_ga"),
        ({"peft_type": "IA3"}, "of type 'IA3', not LORA"),
        ({"target_modules": [1, 2]}, r"adapter_config\.json: target_modules is \[1, 2\]"),
    ],
)
def test_what_is_more_than_lora_is_refused(folder, changes, message):
    rewrite(folder, **changes)
    with pytest.raises(AdapterError, match=message):
        started_from(folder)


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.int8])
def test_numbers_that_need_a_scale_are_refused(folder, dtype):
    stored = load_file(folder / WEIGHTS_FILE)
    save_file({name: array.astype(dtype) for name, array in stored.items()}, folder / WEIGHTS_FILE)
    with pytest.raises(
        AdapterError, match=r"adapter_model\.safetensors stores .*lora_.* as [FI]8.*, none of F32"
    ):
        started_from(folder)


def test_targets_may_be_the_full_names_of_all_layers(folder):
    """As a trainer writes them that leaves the vision tower out by name."""
    names = [
        f"model.language_model.layers.{i}.{name}"
        for i in range(tiny_model().config.text.num_hidden_layers)
        for name in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj")
    ]
    rewrite(folder, target_modules=names)
    np.testing.assert_array_equal(hidden(started_from(folder)), hidden(adapted(LORA)))


@pytest.mark.parametrize("init", [True, False, "gaussian", "orthogonal", "eva"])
def test_beginnings_that_leave_the_base_alone_are_understood(folder, init):
    rewrite(folder, init_lora_weights=init)
    np.testing.assert_array_equal(hidden(started_from(folder)), hidden(adapted(LORA)))


def test_every_tensor_that_does_not_fit_is_listed(folder):
    arrays = load_file(folder / WEIGHTS_FILE)
    del arrays[f"{FIRST}.self_attn.q_proj.lora_A.weight"]
    arrays["base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight"] = np.zeros((2, 16), np.float32)
    arrays[f"{FIRST}.self_attn.o_proj.lora_B.weight"] = np.zeros((16, 3), np.float32)
    save_file(arrays, folder / WEIGHTS_FILE)
    with pytest.raises(AdapterError) as caught:
        started_from(folder)
    message = str(caught.value)
    assert "3 problems" in message
    assert f"missing: {FIRST}.self_attn.q_proj.lora_A.weight [2, 16]" in message
    assert "unexpected: base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight" in message
    assert f"wrong shape: {FIRST}.self_attn.o_proj.lora_B.weight is [16, 3], expected [16, 2]" in message


def test_a_folder_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(AdapterError, match=f"has no {CONFIG_FILE}"):
        load_adapter(tmp_path, tiny_model().weight_map, LORA)
    with pytest.raises(AdapterError, match="on nothing, are not those of"):
        save_adapter(tiny_model(), tmp_path, LORA, base="base")


def text_logits(model: Qwen3VL) -> np.ndarray:
    """Of a text prompt: the adapters are all in the decoder."""
    prompt = tiny_prompts(1)
    text = prompt.__class__(
        prompt.tokens % 5 + 10, prompt.positions, prompt.lengths, prompt.visual_index * 0 - 1, None
    )
    return np.asarray(model.logits(model.hidden(text, None)))[0], text.tokens


@pytest.mark.live
@pytest.mark.parametrize("rslora", [False, True])
def test_peft_reads_ours_and_we_read_pefts(tmp_path, rslora):
    torch = require_torch()
    peft = pytest.importorskip("peft", reason="the live comparison needs peft")
    from transformers import Qwen3VLForConditionalGeneration

    lora = LoraConfig(rank=2, alpha=3.0, use_rslora=rslora)
    save_pretrained(tiny_model(), tmp_path / "base", dtype=jnp.float32)

    def public(adapter: Path | None = None):
        model = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "base", dtype=torch.float32)
        return model if adapter is None else peft.PeftModel.from_pretrained(model, adapter)

    def logits_of(model) -> np.ndarray:
        with torch.no_grad():
            return model.eval()(input_ids=torch.tensor(tokens.astype(np.int64))).logits.numpy()[0]

    model = adapted(lora)
    ours, tokens = text_logits(model)
    # PEFT reads ours, and merges it into what we merge.
    save_adapter(model, tmp_path / "ours", lora, base=str(tmp_path / "base"))
    loaded = public(tmp_path / "ours")
    tolerance = 1e-5 * np.abs(ours).max()
    np.testing.assert_allclose(logits_of(loaded), ours, atol=tolerance)
    save_pretrained(model, tmp_path / "merged", dtype=jnp.float32)
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    state = loaded.merge_and_unload().state_dict()
    for name, array in merged.items():
        np.testing.assert_allclose(state[name].numpy(), array, atol=1e-6, err_msg=name)
    # We read PEFT's own.
    settings = peft.LoraConfig(
        r=2, lora_alpha=3, use_rslora=rslora, target_modules=list(lora.targets), task_type="CAUSAL_LM"
    )
    theirs = peft.get_peft_model(public(), settings)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    np.testing.assert_allclose(
        text_logits(started_from(tmp_path / "theirs", lora))[0], logits_of(theirs), atol=tolerance
    )
