"""Conversion: the same bytes there and back, and complete folders."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from vcap_jax.captioning.settings import CAPTIONING_FILE
from vcap_jax.commands.convert import main as convert
from vcap_jax.configuration import dump_config
from vcap_jax.export.hugging_face import (
    ConversionError,
    adapter_to_peft,
    checkpoint_from_hf,
    checkpoint_to_hf,
)
from vcap_jax.models.errors import CheckpointError
from vcap_jax.models.lora import LoraConfig
from vcap_jax.models.policy import ModelConfig
from vcap_jax.models.qwen3_vl.family import Qwen3VLFamily
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.step_log import LogError
from vcap_jax.run.config import RunConfig
from vcap_jax.run.model_loading import load_model, load_policy
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.world.backbone import BACKBONE_FOLDER

PLACEMENT = Placement.build(MeshConfig(fsdp=1))


def test_there_and_back(tmp_path):
    checkpoint_from_hf(BACKBONE_FOLDER, tmp_path / "orbax")
    assert checkpoint_to_hf(tmp_path / "orbax", tmp_path / "hf") == (None, None)
    before, after = (load_file(folder / "model.safetensors") for folder in (BACKBONE_FOLDER, tmp_path / "hf"))
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array.view(np.uint8), after[name].view(np.uint8), err_msg=name)
    for name in ("tokenizer.json", "preprocessor_config.json", "generation_config.json", "config.json"):
        assert json.loads((tmp_path / "hf" / name).read_text())
    # The licence came with the base's card, through the Orbax folder.
    assert "license: apache-2.0" in (tmp_path / "hf" / "README.md").read_text()
    assert "converted from the checkpoint `orbax`" in (tmp_path / "hf" / "README.md").read_text()
    as_any_other(tmp_path / "hf")


def test_how_a_captioner_is_asked_comes_back_too(tmp_path):
    """An export of a run that went through an Orbax folder was asked as if nothing were known of it."""
    export = tmp_path / "export"
    shutil.copytree(BACKBONE_FOLDER, export)
    asked = "rollout: {max_completion_length: 77}\n"
    (export / CAPTIONING_FILE).write_text(asked)
    checkpoint_from_hf(export, tmp_path / "orbax")
    checkpoint_to_hf(tmp_path / "orbax", tmp_path / "hf")
    assert (tmp_path / "hf" / CAPTIONING_FILE).read_text() == asked


@pytest.mark.parametrize(
    "stated", [*(pytest.param(x, marks=pytest.mark.slow) for x in (None, "float16")), "bfloat16"]
)
@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tensors_keep_their_precision_whatever_config_json_says(tmp_path, stated, several, capsys):
    base = tmp_path / "base"
    shutil.copytree(BACKBONE_FOLDER, base)
    config = json.loads((base / "config.json").read_text()) | {"dtype": stated}
    (base / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    rng, stored = np.random.default_rng(0), load_file(base / "model.safetensors")
    exact = {
        # Of several types the narrow ones are held by the wide one.
        name: array if several and "norm" in name else rng.normal(size=array.shape).astype(np.float32)
        for name, array in stored.items()
    }
    save_file(exact, base / "model.safetensors", metadata={"format": "pt"})
    assert convert(["from-hf", str(base), str(tmp_path / "orbax")]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path / 'orbax'}, in float32\n" in said
    assert (f"config.json says {stated}; it is float32" in said) == (stated is not None)
    assert convert(["to-hf", str(tmp_path / "orbax"), str(tmp_path / "hf"), "--dtype", "float32"]) == 0
    found = load_file(tmp_path / "hf" / "model.safetensors")
    for name, array in exact.items():
        np.testing.assert_array_equal(found[name], array.astype(np.float32), err_msg=name)


def test_narrow_tensors_stay_narrow_and_those_of_other_types_are_named(tmp_path):
    base = tmp_path / "base"
    shutil.copytree(BACKBONE_FOLDER, base)
    config = json.loads((base / "config.json").read_text()) | {"dtype": "float32"}
    (base / "config.json").write_text(json.dumps(config))
    assert checkpoint_from_hf(base, tmp_path / "orbax") == ("bfloat16", "float32")
    stored = load_file(base / "model.safetensors")
    name = next(iter(stored))
    save_file(stored | {name: stored[name].astype(np.float64)}, base / "model.safetensors")
    with pytest.raises(CheckpointError, match=re.escape(f"{name} is stored as F64, none of F32, BF16, F16")):
        checkpoint_from_hf(base, tmp_path / "other")


def test_small_files_stay_as_the_base_has_them(tmp_path):
    """Written anew by transformers 5 they name special tokens in a list, which transformers 4 cannot read."""
    base = tmp_path / "base"
    shutil.copytree(BACKBONE_FOLDER, base)
    told = json.loads((base / "tokenizer_config.json").read_text())
    told["additional_special_tokens"] = told.pop("extra_special_tokens")
    (base / "tokenizer_config.json").write_text(json.dumps(told))
    (base / "video_preprocessor_config.json").unlink()  # what the base lacks is written
    checkpoint_from_hf(base, tmp_path / "orbax")
    checkpoint_to_hf(tmp_path / "orbax", tmp_path / "hf")
    for name in (
        "tokenizer_config.json",
        "tokenizer.json",
        "preprocessor_config.json",
        "chat_template.jinja",
    ):
        assert (tmp_path / "hf" / name).read_bytes() == (base / name).read_bytes(), name
    assert json.loads((tmp_path / "hf" / "video_preprocessor_config.json").read_text())


@pytest.mark.parametrize("named", [{"top_k": 5, "eos_token_id": 807}, {}])
def test_an_export_says_what_ends_its_captions(tmp_path, named):
    """A base's file may name <|endoftext|> alone, after which a trained model would go on behind its captions."""
    base = tmp_path / "base"
    shutil.copytree(BACKBONE_FOLDER, base)
    published = (base / "generation_config.json").read_bytes()
    checkpoint_from_hf(base, tmp_path / "orbax")
    assert (tmp_path / "orbax" / "generation_config.json").read_bytes() == published
    (tmp_path / "orbax" / "generation_config.json").write_text(json.dumps(named))
    checkpoint_to_hf(tmp_path / "orbax", tmp_path / "hf")
    said = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert said == named | {"eos_token_id": [809, 807]}


def as_any_other(folder: Path) -> None:
    """The files of a folder have the mode of a file that is simply written."""
    plain = folder.parent / "plain"
    plain.write_text("")
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in folder.iterdir()}
    assert set(modes.values()) == {oct(plain.stat().st_mode & 0o777)}, modes
    plain.unlink()


def test_the_public_classes_that_need_no_pytorch_load_what_is_exported(lora_run, tmp_path):
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

    checkpoint_to_hf(lora_run.root, tmp_path / "hf")
    assert AutoConfig.from_pretrained(tmp_path / "hf").model_type == "qwen3_vl"
    assert AutoImageProcessor.from_pretrained(tmp_path / "hf").merge_size == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer.decode(tokenizer("a red circle")["input_ids"]) == "a red circle"


def test_an_orbax_folder_is_a_model_path(tmp_path):
    checkpoint_from_hf(BACKBONE_FOLDER, tmp_path / "orbax")
    placement = Placement.build(MeshConfig(fsdp=1))
    models = [load_model(folder, placement=placement) for folder in (BACKBONE_FOLDER, tmp_path / "orbax")]
    tables = [np.asarray(model.text.embed_tokens[...]).view(np.uint8) for model in models]
    np.testing.assert_array_equal(*tables)


def test_what_is_no_source_or_no_target_is_refused(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("x")
    with pytest.raises(ConversionError, match="not empty"):
        checkpoint_to_hf(BACKBONE_FOLDER, tmp_path / "used")
    with pytest.raises(ConversionError, match="neither a run folder"):
        checkpoint_to_hf(tmp_path / "used", tmp_path / "new")
    run = RunFolder(tmp_path / "rounds" / "e1")
    run.checkpoints.mkdir(parents=True)
    for folder in (run.root, run.root.parent):
        (folder / "config.yaml").touch()
    with pytest.raises(ConversionError, match=r"rounds holds runs, name one of them: \S+rounds/e1$"):
        checkpoint_to_hf(run.root.parent, tmp_path / "new")
    with pytest.raises(
        ConversionError, match=r"e1 is a run, which model\.path takes as it is: from-hf takes"
    ):
        checkpoint_from_hf(run.root, tmp_path / "new")


ADAPTED = ModelConfig(lora=LoraConfig(rank=2, targets=("q_proj", "up_proj")), frozen_dtype="bfloat16")


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory) -> RunFolder:
    """What a LoRA run of the backbone leaves: its configuration and a checkpoint, here of random adapters."""
    run = RunFolder(tmp_path_factory.mktemp("runs") / "lora")
    policy = load_policy(ADAPTED, placement=PLACEMENT)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(policy.trainable)} == {"float32"}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(policy.frozen)} == {"bfloat16"}
    rng = np.random.default_rng(0)
    moved = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), policy.trainable)
    run.root.mkdir()
    # It says that it started from another adapter, which has been removed since.
    started = dataclasses.replace(ADAPTED, lora=dataclasses.replace(ADAPTED.lora, adapter="/removed"))
    run.config.write_text(dump_config(RunConfig(model=started)))
    with Checkpointer(run.checkpoints) as checkpoints:
        checkpoints.save(3, {"params": moved})
        checkpoints.wait()
    return run


def test_a_lora_run_is_exported_merged(lora_run, tmp_path):
    step, kept = checkpoint_to_hf(lora_run.root, tmp_path / "hf", dtype="float32")
    assert step == 3
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "LoRA adapters of rank 2 on q_proj, up_proj" in card
    assert kept == pytest.approx(1, abs=1e-4)
    before, after = (load_file(folder / "model.safetensors") for folder in (BACKBONE_FOLDER, tmp_path / "hf"))
    moved = {name for name in before if not np.array_equal(before[name].astype(np.float32), after[name])}
    assert moved
    assert {name.split(".")[-2] for name in moved} == {"q_proj", "up_proj"}


def test_a_run_is_exported_on_another_machine_than_trained_it(lora_run, tmp_path):
    """Nothing is computed with the model, so the kernels and the sizes that it was trained with do not matter."""
    run = RunFolder(tmp_path / "run")
    run.root.mkdir()
    (run.root / "checkpoints").symlink_to(lora_run.checkpoints)
    model = dataclasses.replace(ADAPTED, attention="cudnn", decode_attention="hopper")
    run.config.write_text(dump_config(RunConfig(model=model)))
    assert checkpoint_to_hf(run.root, tmp_path / "hf")[0] == 3
    assert adapter_to_peft(run.root, tmp_path / "adapter") == 3


@pytest.mark.parametrize(
    ("options", "stored"), [(["--adapter"], "float32"), (["--adapter", "--dtype", "bfloat16"], "bfloat16")]
)
def test_adapters_are_written_as_they_were_trained(lora_run, tmp_path, options, stored) -> None:
    """They are small, and a run may go on from them; merged tensors are bfloat16 unless it is asked otherwise."""
    assert convert(["to-hf", str(lora_run.root), str(tmp_path / "adapter"), *options]) == 0
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {str(array.dtype) for array in tensors.values()} == {stored}


@pytest.mark.long
def test_the_command_says_what_rounding_leaves_of_adapters(lora_run, tmp_path):
    """Adapters a thousand times smaller than the random ones lose much of what they add to bfloat16 matrices."""
    run = RunFolder(tmp_path / "run")
    run.root.mkdir()
    run.config.write_bytes(lora_run.config.read_bytes())
    with Checkpointer(lora_run.checkpoints, read_only=True) as checkpoints:
        saved, _ = checkpoints.restore({"params": load_policy(ADAPTED, placement=PLACEMENT).trainable})
    with Checkpointer(run.checkpoints) as checkpoints:
        checkpoints.save(3, {"params": jax.tree.map(lambda x: x / 1000, saved["params"])})
        checkpoints.wait()
    command = [sys.executable, "launch/convert.py", "to-hf", str(run.root), str(tmp_path / "hf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "PyTorch" not in done.stderr
    said = done.stdout
    share = re.search(r"rounded to bfloat16, the matrices hold (\d+)% of what the adapters add", said)
    assert share is not None, said
    assert int(share[1]) != 100
    assert f"{run.root} at step 3 -> {tmp_path / 'hf'}" in said


def test_its_adapters_are_exported_alone_and_start_another_run(lora_run, tmp_path):
    assert adapter_to_peft(lora_run.root, tmp_path / "adapter") == 3
    assert "library_name: peft" in (tmp_path / "adapter" / "README.md").read_text()
    as_any_other(tmp_path / "adapter")
    model = ModelConfig(
        lora=LoraConfig(rank=2, targets=("q_proj", "up_proj"), adapter=str(tmp_path / "adapter"))
    )
    policy = load_policy(model, placement=PLACEMENT)
    with Checkpointer(lora_run.checkpoints, read_only=True) as checkpoints:
        saved, _ = checkpoints.restore({"params": policy.trainable}, partial=True)
    for one, other in zip(jax.tree.leaves(policy.trainable), jax.tree.leaves(saved["params"]), strict=True):
        np.testing.assert_array_equal(one, other)
    plain = RunFolder(tmp_path / "plain")
    plain.root.mkdir()
    plain.config.write_text(dump_config(RunConfig()))
    with Checkpointer(plain.checkpoints) as checkpoints:
        checkpoints.save(1, {"params": load_policy(ModelConfig(), placement=PLACEMENT).trainable})
        checkpoints.wait()
    with pytest.raises(ConversionError, match="has no adapters: leave --adapter out"):
        adapter_to_peft(plain.root, tmp_path / "none")


@contextmanager
def at_every_file(look):
    """Has ``look`` called before every file that Python opens or moves, as a kill might come then."""
    watching = True

    def hook(event, arguments):
        del arguments
        if watching and event in ("open", "os.rename", "os.remove", "os.rmdir"):
            look()

    sys.addaudithook(hook)  # which stays
    try:
        yield
    finally:
        watching = False


@pytest.mark.parametrize("there", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["run", "adapter", "orbax"])
def test_wherever_an_export_is_killed_what_it_leaves_is_whole_or_cannot_be_read(
    lora_run, tmp_path, kind, there
):
    target = tmp_path / "out"
    if there:
        target.mkdir()
    export = {
        "run": lambda: checkpoint_to_hf(lora_run.root, target),
        "adapter": lambda: adapter_to_peft(lora_run.root, target),
        "orbax": lambda: checkpoint_from_hf(BACKBONE_FOLDER, target),
    }[kind]
    told_by = "adapter_config.json" if kind == "adapter" else "config.json"
    seen: list[frozenset[str]] = []

    def look() -> None:
        names = {str(file.relative_to(target)) for file in target.rglob("*") if file.is_file()}
        seen.append(frozenset(name for name in names if not name.startswith(".unfinished")))

    with at_every_file(look):
        export()
    look()
    whole = seen[-1]
    assert told_by in whole
    assert ("captioning.yaml" in whole) == (kind == "run")
    assert len(set(seen)) > 2  # some were there and others not
    assert {names for names in seen if told_by in names} == {whole}
    assert not (target / ".unfinished").exists()


def test_an_export_that_fails_leaves_nothing_and_one_that_was_killed_is_named(
    lora_run, tmp_path, monkeypatch
):
    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    there = tmp_path / "there"
    there.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("vcap_jax.export.hugging_face.write_captioning", full)
        for target in (tmp_path / "new", there):
            with pytest.raises(OSError, match="No space"):
                checkpoint_to_hf(lora_run.root, target)
    assert not (tmp_path / "new").exists()
    assert list(there.iterdir()) == []
    (there / ".unfinished").mkdir()
    with pytest.raises(ConversionError, match="there holds an export that was ended before it was whole"):
        checkpoint_to_hf(lora_run.root, there)


def test_a_run_whose_records_are_damaged_is_told_of_before_weights_are_written(
    lora_run, tmp_path, monkeypatch
):
    shutil.copytree(lora_run.root, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n\x00\n{"step": 2}\n')
    monkeypatch.setattr(Qwen3VLFamily, "save", lambda *_, **__: pytest.fail("weights were written"))
    with pytest.raises(LogError, match=r"metrics\.jsonl.* 2"):
        checkpoint_to_hf(tmp_path / "run", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_a_target_that_cannot_be_one_is_named_before_work(tmp_path):
    (tmp_path / "file").write_text("")
    for name, message in (("file", "file is a file: give a new folder"), ("a[1]", r"a\[1\] has one of")):
        with pytest.raises(ConversionError, match=message):
            checkpoint_from_hf(tmp_path / "none", tmp_path / name)


@pytest.mark.live
def test_pytorch_loads_what_is_exported(tmp_path):
    """Logits of the exported backbone in the public implementation, float32."""
    torch = pytest.importorskip("torch")
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

    from vcap_jax.models.buckets import Buckets
    from vcap_jax.models.message import ImagePart, TextPart
    from vcap_jax.models.qwen3_vl.processing import Processor, collate
    from vcap_jax.models.qwen3_vl.vision import normalise

    checkpoint_from_hf(BACKBONE_FOLDER, tmp_path / "orbax")
    checkpoint_to_hf(tmp_path / "orbax", tmp_path / "hf", dtype="float32")
    assert type(AutoProcessor.from_pretrained(tmp_path / "hf")).__name__ == "Qwen3VLProcessor"
    processor = Processor.from_pretrained(tmp_path / "hf")
    picture = np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8)
    encoded = processor.encode([ImagePart(picture), TextPart("Describe the image.")])
    model = load_model(tmp_path / "orbax", placement=Placement.build(MeshConfig(fsdp=1)), dtype=jnp.float32)
    prompt = collate([encoded], Buckets(), processor.merge_size)
    ours = np.asarray(model.logits(model.hidden(prompt, model.encode_vision(prompt.vision))))[0]
    config = model.config.vision
    # The public model takes a still image that fills its temporal patch.
    still = encoded.frames[0].reshape(len(encoded.frames[0]), config.in_channels, 1, -1)
    levels = jnp.asarray(np.repeat(still, config.temporal_patch_size, axis=2).reshape(len(still), -1))
    public = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    with torch.no_grad():
        theirs = public(
            input_ids=torch.tensor(encoded.tokens[None].astype(np.int64)),
            pixel_values=torch.tensor(np.asarray(normalise(levels, encoded.scale, config, jnp.float32))),
            image_grid_thw=torch.tensor([[1, *encoded.grids[0].tolist()]]),
            mm_token_type_ids=torch.tensor(encoded.is_visual[None].astype(np.int32)),
        ).logits.numpy()[0]
    length = len(encoded.tokens)
    np.testing.assert_allclose(ours[:length], theirs, atol=1e-4 * np.abs(theirs).max())
