"""What commands are given is looked at before there is a folder; a mistake is told in a line and leaves nothing."""

from __future__ import annotations

import json
import re
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.references import PoolEntry, Provenance, ReferencePool
from vcap_jax.references.writers import caption_settings
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.inputs import InputError, check_checkpoint, check_inputs, check_sources
from vcap_jax.run.setup import heldout_samples, manifest_samples
from vcap_jax.system.errors import VCapError

ROOT = Path(__file__).resolve().parents[2]
HUB = "hf download Qwen/Qwen3-VL-8B-Instruct --local-dir FOLDER"


def rows(path: Path, *content: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Two pictures, of which one is there, and a clip."""
    (tmp_path / "a.png").touch()
    return rows(
        tmp_path / "rows.jsonl",
        {"id": "a", "image": "a.png", "licence": "CC0", "references": ["A lamp."]},
        {"id": "b", "image": "gone.png", "source": "web"},
        {"id": "c", "video": "c.mp4", "other": 1},
    )


def settings(manifest: Path, *overrides: str) -> RunConfig:
    return load_config(RunConfig, [], [f"data.manifest={manifest}", "max_steps=1", *overrides])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", HUB),
        ("https://huggingface.co/Qwen/Qwen3-VL-8B-Instruct", HUB),
        ("https://huggingface.co/Qwen/Qwen3-VL-8B-Instruct/tree/main", HUB),
        ("s3://models/a/b/c", "is an address: download"),
        ("/nowhere/at/all", "/nowhere/at/all does not exist"),
        ("{folder}/bare", r"is no checkpoint \(it has no config\.json\)"),
        ("{folder}/whole/model.safetensors", r"model\.safetensors is a file: give the folder"),
        ("{folder}/light", "has no weights"),
        ("{folder}/half", r"lacks 1 of its 2 files of weights, the first 2\.safetensors"),
        ("{folder}/torn", r"model\.safetensors\.index\.json cannot be read"),
        ("{folder}/rounds", r"rounds holds runs, name one of them: \S+rounds/e1, \S+rounds/self/student$"),
        ("{folder}/whole", None),
        ("embedded", None),
    ],
)
def test_the_checkpoint(tmp_path: Path, path: str, message: str | None) -> None:
    for name in ("bare", "light", "half", "torn", "whole"):
        (tmp_path / name).mkdir()
        if name != "bare":
            (tmp_path / name / "config.json").write_text("{}")
    index = {"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}}
    (tmp_path / "half" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "half" / "1.safetensors").touch()
    (tmp_path / "torn" / "model.safetensors.index.json").write_text('{"weight')
    (tmp_path / "whole" / "model.safetensors").touch()
    for name in ("e1", "self/student"):
        (tmp_path / "rounds" / name).mkdir(parents=True)
        (tmp_path / "rounds" / name / "config.yaml").touch()
    path = path.format(folder=tmp_path)
    if message is None:
        check_checkpoint(path)
        return
    with pytest.raises(ConfigError, match=message) as raised:
        check_checkpoint(path, key="--by")
    assert f"--by {path}" in str(raised.value)


def test_what_is_worth_knowing_is_told(manifest: Path) -> None:
    assert check_inputs(settings(manifest)) == [
        f"{manifest}: ignored keys: licence, source",
        (
            "1 of 2 samples have files that do not exist and will be skipped, the first: "
            f"{manifest}:2: {manifest.parent / 'gone.png'}"
        ),
    ]
    assert check_inputs(RunConfig()) == []


def test_what_a_folder_holds_beside_pictures_and_clips_is_told(tmp_path: Path) -> None:
    """Phones write HEIC, which nothing here opens; a manifest in the folder is no sample and not read."""
    for name in ("a.png", "b.heic", "c.HEIC", "rows.jsonl", "README", "inside/d.heic", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "inside" / "e.x\udcff").touch()
    (note,) = check_inputs(settings(tmp_path))
    assert note.startswith(
        f"{tmp_path}: 6 files are left out, which by their names are neither pictures nor "
    )
    assert ": .heic (3), " in note
    assert sorted(note.rpartition(": ")[2].split(", ")) == [
        ".heic (3)",
        ".jsonl (1)",
        ".x\\udcff (1)",
        "no ending (1)",
    ]
    held = tmp_path / "inside"
    (held / "f.png").touch()
    manifest = rows(tmp_path / "rows.jsonl", {"id": "a", "image": "a.png"})
    (note,) = check_inputs(settings(manifest, f"data.heldout={held}"))
    assert note.startswith(f"{held}: 2 files are left out")


def test_rows_of_the_other_modality_are_counted(manifest: Path) -> None:
    said: list[str] = []
    assert [sample.id for sample in manifest_samples(settings(manifest), said.append)] == ["a", "b"]
    assert [sample.id for sample in manifest_samples(settings(manifest, "modality=video"), said.append)] == [
        "c"
    ]
    assert said == [
        f"left out of {manifest}: 1 video, because modality is image",
        f"left out of {manifest}: 2 images, because modality is video",
    ]
    rows(manifest, {"id": "a", "image": "a.png"})
    with pytest.raises(ConfigError, match=r"has no videos, only 1 images: set modality=image"):
        manifest_samples(settings(manifest, "modality=video"), said.append)


def test_a_part_of_the_manifest_is_taken_and_a_share_of_that_held_out(tmp_path: Path) -> None:
    manifest = rows(tmp_path / "many.jsonl", *({"id": f"s{i}", "image": f"{i}.png"} for i in range(300)))
    said: list[str] = []
    config = settings(manifest, "data.max_samples=100", "data.heldout_share=0.2")
    trained, held = manifest_samples(config, said.append), heldout_samples(config)
    assert len(trained) + len(held) == 100
    assert held
    assert said[0] == f"taken of {manifest}: 100 of 300 samples (data.max_samples)"
    whole = {sample.id for sample in heldout_samples(settings(manifest, "data.heldout_share=0.2"))}
    assert {sample.id for sample in held} < whole


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.on_bad_sample=refuse"], r"rows\.jsonl:2: .*gone\.png does not exist, as files of 1 of 2"),
        (["modality=video"], r"rows\.jsonl:3: .*c\.mp4 does not exist, as files of 1 of 1 samples"),
        (["max_steps=null"], "1 samples do not fill one step of 32 groups"),
        (["max_steps=null", "data.manifest=null", "world.train_scenes=31"], "31 samples do not fill"),
        (["data.references=nowhere.jsonl"], r"nowhere\.jsonl does not exist"),
        (["data.references={folder}/pool.jsonl"], r'nothing for any .* first id is "z", the manifest\'s "a"'),
        (["data.references=https://x.org/pool.jsonl"], "is an address"),
        (["reward.family=no.such:Family"], r"no\.such cannot be imported"),
        (["reward.instructions.video_global={folder}/a.txt"], r"a\.txt.* has the placeholders"),
        (["reward.family=vqa", "reward.vqa.questions={folder}/q.jsonl"], "asks nothing about any"),
        (["reward.family=vqa", "reward.vqa.questions=gone.jsonl"], r"gone\.jsonl does not exist"),
        (["reward.family=vqa"], "questions is null"),
        (["reward.family=balanced", "reward.balanced.instruction=gone.txt"], r"cannot read 'gone\.txt'"),
        (
            ["reward.family=claim_differences", "reward.claim_differences.instruction=gone.txt"],
            r"cannot read 'gone\.txt'",
        ),
        (
            ["reward.family=vqa", "reward.vqa.questions={folder}/q.jsonl", "reward.vqa.instruction=gone.txt"],
            "gone.txt",
        ),
        (["model.lora.adapter=/nowhere"], r"/nowhere has no adapter_config\.json"),
        (
            ["references.per_sample=4", "references.sampling.temperature=0"],
            r"references\.per_sample is 4.* temperature 0 .*would all be the same",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(manifest: Path, overrides: list[str], message: str) -> None:
    folder = manifest.parent
    rows(folder / "pool.jsonl", {"id": "z", "references": ["A lamp."]})
    rows(folder / "q.jsonl", {"id": "z", "question": "What?", "answer": "a lamp"})
    (folder / "a.txt").write_text("Judge.")
    with pytest.raises(VCapError, match=message):
        check_inputs(settings(manifest, *(text.format(folder=folder) for text in overrides)))


def test_captions_to_learn(manifest: Path) -> None:
    """References and rewards are nobody's business there."""
    loose = ["data.references=nowhere.jsonl", "reward.family=no.such:Family", "sft.max_steps=1"]
    check_inputs(settings(manifest, *loose), "supervised")
    with pytest.raises(ManifestError, match=r"nowhere\.jsonl does not exist"):
        check_inputs(settings(manifest, "sft.captions=nowhere.jsonl"), "supervised")
    with pytest.raises(ConfigError, match="1 samples do not fill one step"):
        check_inputs(settings(manifest), "supervised")
    with pytest.raises(ConfigError, match="nothing to learn"):
        check_inputs(RunConfig(), "supervised")
    with pytest.raises(ConfigError, match=r"sft\.groups_per_step"):
        check_inputs(settings(manifest), "distillation")
    check_inputs(settings(manifest, *loose), "captions")


def test_a_relative_path_is_told_with_the_folder_it_was_sought_in(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for override, told in (
        ("data.manifest=gone.jsonl", "the manifest gone.jsonl does not exist in {}: check the path"),
        ("data.references=gone.jsonl", "the reference pool gone.jsonl does not exist in {}: check"),
        ("model.path=gone", "model.path gone does not exist in {}: give the folder"),
        ("model.path=runs/gone", "model.path runs/gone is no folder in {}. If it is a checkpoint of"),
        ("reward.instructions.image=gone.txt", "instruction 'image': cannot read 'gone.txt' in {}: "),
    ):
        with pytest.raises(VCapError, match=re.escape(told.format(tmp_path))):
            check_inputs(settings(manifest, override))


@pytest.mark.parametrize(
    ("work", "override", "told"),
    [
        ("training", "data.manifest=gone.jsonl", "the manifest gone.jsonl does not exist"),
        ("supervised", "data.manifest=gone.jsonl", "the manifest gone.jsonl does not exist"),
        ("training", "data.heldout=gone.jsonl", "the manifest gone.jsonl does not exist"),
        ("training", "data.references=gone.jsonl", "the reference pool gone.jsonl does not exist"),
        ("supervised", "data.references=gone.jsonl", None),  # nobody is judged
        ("supervised", "sft.captions=gone.jsonl", "the pool of captions gone.jsonl does not exist"),
        ("training", "sft.captions=gone.jsonl", None),
        ("training", "data.manifest=.", None),  # a folder of pictures
        ("training", "data.manifest=null", None),
    ],
)
def test_what_a_resumed_run_reads_again_is_there(
    work: Literal["training", "supervised"],
    override: str,
    told: str | None,
    manifest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with nullcontext() if told is None else pytest.raises(ManifestError, match=told):
        check_sources(settings(manifest, override), work)


def test_all_problems_are_told_at_once(manifest: Path) -> None:
    config = settings(
        manifest, "model.path=/nowhere", "reward.family=no.such:Family", "data.manifest=gone.jsonl"
    )
    with pytest.raises(InputError) as raised:
        check_inputs(config)
    first, *others = str(raised.value).splitlines()
    assert first == "3 problems:"
    assert [line.partition(" does not exist")[0].strip() for line in (others[0], others[2])] == [
        "- model.path /nowhere",
        "- the manifest gone.jsonl",
    ]


@pytest.mark.parametrize("command", ["train", "sft", "self_improve", "distill", "references"])
@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("data.manifest=gone.jsonl", "the manifest gone.jsonl does not exist"),
        ("model.path=Qwen/Qwen3-VL-8B-Instruct", HUB),
    ],
)
def test_a_mistake_leaves_no_folder_behind(
    command: str, override: str, told: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    folder = tmp_path / "run"
    option = {"train": "--run-dir", "sft": "--run-dir", "references": "--out"}.get(command, "--dir")
    words = [
        "--config",
        str(ROOT / "configs" / "embedded" / "image.yaml"),
        option,
        str(folder),
        "mesh.fsdp=1",
    ]
    monkeypatch.setattr(sys, "argv", [command, *words, "compilation_cache=null", override])
    assert runpy.run_path(str(ROOT / "launch" / f"{command}.py"))["main"]() == 1
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_teacher_that_is_not_there_is_told_before_anything_is_drawn(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    words = [
        "--config",
        str(ROOT / "configs" / "embedded" / "image.yaml"),
        "mesh.fsdp=1",
        "compilation_cache=null",
    ]
    teacher = ["--teacher", "self", "--teacher", f"e1={tmp_path / 'e1'}"]
    monkeypatch.setattr(sys, "argv", ["distill", *words, "--dir", str(tmp_path / "all"), *teacher])
    assert runpy.run_path(str(ROOT / "launch" / "distill.py"))["main"]() == 1
    assert f"--teacher e1 {tmp_path / 'e1'} does not exist" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "there"),
    [("modality=video", "images of world.seed 3"), ("world.seed=4", "images of world.seed 3")],
)
def test_a_pool_of_other_scenes_of_the_embedded_world_is_refused(
    tmp_path: Path, setting: str, there: str
) -> None:
    """Their ids are the same."""
    own = load_config(RunConfig, [ROOT / "configs" / "embedded" / "image.yaml"], ["world.seed=3"])
    written = caption_settings(own, own.rollout, 0, None)
    path = tmp_path / "pool.jsonl"
    pool = ReferencePool([PoolEntry(id="train-000000", references=("A ring.",))])
    pool.write(path, Provenance(writer="a test", weights=None, seed=0, settings=written, asked=""))

    def training(*settings: str) -> RunConfig:
        words = [f"data.references={path}", "world.seed=3", *settings]
        return load_config(RunConfig, [ROOT / "configs" / "embedded" / "image.yaml"], words)

    check_inputs(training())
    with pytest.raises(ManifestError, match=rf"pool\.jsonl was written for {there}, and the scenes here are"):
        check_inputs(training(setting))


@pytest.mark.long
def test_a_mistake_that_shows_later_is_made_good_in_the_same_folder(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    """What does not fit the model is known when it is read, and the folder is there by then."""
    folder = tmp_path / "run"
    words = [
        "--config",
        str(ROOT / "configs" / "embedded" / "image.yaml"),
        "--run-dir",
        str(folder),
        "mesh.fsdp=1",
    ]
    small = ["world.train_scenes=32", "world.heldout_scenes=1", "compilation_cache=null"]
    main = runpy.run_path(str(ROOT / "launch" / "train.py"))["main"]
    for wrong in ("txt", "test"):
        monkeypatch.setattr(sys, "argv", ["train", *words, *small, f"model.frozen=[visual,{wrong}]"])
        assert main() == 1
        assert f"model.frozen names '{wrong}'" in capsys.readouterr().err
    assert not RunFolder(folder).begun


@pytest.mark.parametrize(
    ("options", "settings", "work", "message"),
    [
        ("{}", [], "training", r"decapbench: options.data is missing"),
        ("{data: /nowhere}", [], "training", r"decapbench: /nowhere: there is no such folder"),
        ("{data: /nowhere, mod: strict}", [], "training", r"unknown key"),
        (
            "{data: .}",
            ["reward.family=random"],
            "training",
            r"decapbench asks a judge, and there is none",
        ),
        ("{data: .}", [], "supervised", r"decapbench asks a judge, and there is none"),
    ],
)
def test_a_benchmark_that_cannot_be_made_is_told_before_references_are_written(
    manifest: Path, options: str, settings: list[str], work: Any, message: str
) -> None:
    """The options of an evaluator cannot be corrected where the run is resumed."""
    config = load_config(
        RunConfig,
        [],
        [
            f"data.manifest={manifest}",
            "max_steps=1",
            "sft.max_steps=1",
            f"evaluation.evaluators=[{{use: decapbench, options: {options}}}]",
            *settings,
        ],
    )
    with pytest.raises(VCapError, match=message):
        check_inputs(config, work, policy=False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.max_samples=16", r"data.max_samples is 16, .*there is none: .*world\.train_scenes"),
        (
            "evaluation.other_judge={urls: [http://127.0.0.1:9]}",
            r"evaluation.other_judge .*none are held out: set data.heldout or",
        ),
    ],
)
def test_what_would_do_nothing_is_told(manifest: Path, setting: str, message: str) -> None:
    (manifest.parent / "held").mkdir()
    (manifest.parent / "held" / "h.png").touch()
    with pytest.raises(ConfigError, match=message):
        check_inputs(load_config(RunConfig, [], [setting]), policy=False)
    check_inputs(settings(manifest, setting, f"data.heldout={manifest.parent / 'held'}"), policy=False)


@pytest.mark.parametrize(
    ("setting", "work", "message"),
    [
        (
            "second_judge.judge.urls=[http://127.0.0.1:9]",
            "supervised",
            r"second_judge .*set second_judge=null",
        ),
        ("second_judge.judge.urls=[http://127.0.0.1:9]", "distillation", "set second_judge=null"),
        ("sft.captions=mine.jsonl", "distillation", r"sft.captions is mine\.jsonl.* by launch/sft\.py"),
    ],
)
def test_what_a_command_would_not_look_at_is_refused(
    manifest: Path, setting: str, work: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_inputs(settings(manifest, setting, "sft.max_steps=1"), work, policy=False)


def test_scoring_takes_the_settings_of_a_run_and_says_which_it_does_not_look_at(manifest: Path) -> None:
    judge = "{urls: [http://127.0.0.1:9]}"
    of_a_run = ["data.on_bad_sample=refuse", f"second_judge.judge={judge}", f"evaluation.other_judge={judge}"]
    (manifest.parent / "gone.png").touch()
    plain = check_inputs(settings(manifest), "scores", policy=False)
    notes = check_inputs(settings(manifest, *of_a_run), "scores", policy=False)
    judges, bad = [note for note in notes if note not in plain]
    assert "not by second_judge or evaluation.other_judge" in judges
    assert bad.startswith("data.on_bad_sample=refuse")
