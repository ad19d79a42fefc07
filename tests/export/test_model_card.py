"""The card of an exported folder: what Hugging Face reads of it, what it tells, and what it keeps to itself."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vcap_jax import __version__
from vcap_jax.configuration import dump_config, load_config
from vcap_jax.data.config import DataConfig
from vcap_jax.data.holding_out import is_held_out
from vcap_jax.export.model_card import base_name, write_model_card
from vcap_jax.export.run_facts import public_text, settings
from vcap_jax.models.lora import LoraConfig
from vcap_jax.models.policy import ModelConfig
from vcap_jax.models.qwen3_vl.family import Qwen3VLFamily
from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.config import JudgeConfig
from vcap_jax.run.checkpoint_source import lineage
from vcap_jax.run.config import RunConfig
from vcap_jax.run.judge_record import note_judge
from vcap_jax.sft.config import SFTConfig
from vcap_jax.world.backbone import BACKBONE_FOLDER

BASE_CARD = "---\nlicense: other\nlicense_name: of-its-own\nlicense_link: LICENSE\ntags: [x]\n---\n# Base\n"
SHARES = {
    "coverage": 0.9,
    "coverage_interval": [0.8, 0.95],
    "hallucination": 0.1,
    "hallucination_interval": [0.0, 0.2],
}


def checkpoint(folder: Path, card: str | None = BASE_CARD) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if card is not None:
        (folder / "README.md").write_text(card)
    return folder


def run(
    folder: Path, config: RunConfig, *, kind: str = "training", steps: int = 2, **summary: Any
) -> RunFolder:
    """What a run of two steps leaves, without its weights."""
    made = RunFolder(folder)
    made.checkpoints.mkdir(parents=True)
    made.config.write_text(dump_config(config))
    (folder / "kind.txt").write_text(f"{kind}\n")
    rows = [{"step": s, "reward/mean": s / 4, "kl": s / 1000, "nll": 3 - s} for s in range(1, steps + 1)]
    made.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary:
        made.summary.write_text(json.dumps({"steps": steps, **summary}))
    return made


def card(source: Path, target: Path, step: int | None = 2, **options: Any) -> tuple[dict[str, Any], str]:
    """Its metadata and its text."""
    target.mkdir()
    line = lineage(str(source), step)
    write_model_card(
        target, family=Qwen3VLFamily(), base=line.origin, runs=line.runs, dtype="bfloat16", **options
    )
    text = (target / "README.md").read_text()
    found = re.fullmatch(r"---\n(.*?)\n---\n\n(# .*)", text, re.DOTALL)
    assert found is not None
    return yaml.safe_load(found[1]), found[2]


@pytest.fixture
def photographs(tmp_path: Path) -> RunConfig:
    """On three images and a clip of one's own, from a base in a folder, with a judge elsewhere."""
    base = checkpoint(tmp_path / "private" / "Qwen3-VL-8B-Instruct")
    rows = [{"id": str(n), "image": f"{n}.jpg"} for n in range(3)] + [{"id": "c", "video": "c.mp4"}]
    manifest = tmp_path / "private" / "train.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunConfig(
        name="mine",
        seed=7,
        max_steps=2,
        model=ModelConfig(path=str(base)),
        data=DataConfig(manifest=str(manifest)),
        judge=JudgeConfig(urls=("http://10.0.0.5:8000/v1",), model="/models/Qwen3-VL-32B"),
        compilation_cache="/home/someone/cache",
    )


def test_the_card_of_a_run_tells_how_it_was_made(tmp_path: Path, photographs: RunConfig) -> None:
    made = run(tmp_path / "private" / "trained", photographs)
    pool = {
        "source": str(made.root / "references" / "train.jsonl"),
        "digest": "d1g35t",
        "entries": 3,
        "header": None,
    }
    (made.root / "references.json").write_text(json.dumps(pool))
    metadata, text = card(made.root, tmp_path / "exported")
    assert metadata == {
        "library_name": "transformers",
        "license": "other",
        "license_name": "of-its-own",
        "license_link": "LICENSE",
        "base_model": "Qwen3-VL-8B-Instruct",
        "base_model_relation": "finetune",
        "pipeline_tag": "image-text-to-text",
        "tags": ["vcap-jax", "qwen3_vl", "image-captioning", "reinforcement-learning"],
    }
    for row in (
        "| base | `Qwen3-VL-8B-Instruct` |",
        "| trained | all parameters but `visual` |",
        "| references | train.jsonl: of 3 samples, digest d1g35t |",
        "| reward | witness_adjudicator (correctness 0.05, completeness 0.04, text quality 0.01) |",
        "| judge | Qwen3-VL-32B |",
        "| seed | 7 |",
        "| step | 2 of 2 |",
        "| tensors | bfloat16 |",
        f"| made by | VCap-JAX {__version__} |",
        "| reward, mean | 0.250 | 0.500 |",
        "| KL to the reference policy | 0.0010 | 0.0020 |",
    ):
        assert row in text
    # By the run's folder: the name is that of its configuration, which others start from as well.
    assert text.startswith("# trained\n")
    assert "\nname: trained\n" in text
    assert re.search(r"\| data \| train\.jsonl, images: 3 rows, sha256 [0-9a-f]{16} \|", text)
    assert "licence is not known" not in text
    assert 'folder = "exported"' in text
    assert "AutoModelForImageTextToText.from_pretrained(folder" in text
    assert "python launch/train.py --config run.yaml --run-dir RUN" in text
    assert "to-hf RUN FOLDER --step 2\n" in text
    # Nothing of this machine, nor of its network.
    whole = (tmp_path / "exported" / "README.md").read_text()
    for private in (str(tmp_path), "private", "10.0.0.5", "/models", "someone"):
        assert private not in whole


def test_what_cannot_be_had_is_left_out(tmp_path: Path, photographs: RunConfig) -> None:
    """No manifest, no metrics, no licence, an address without a model, steps that nobody told."""
    config = dataclasses.replace(
        photographs, max_steps=None, judge=JudgeConfig(urls=("http://10.0.0.5:8000/v1",))
    )
    made = run(tmp_path / "run", config, steps=0)
    (tmp_path / "private" / "train.jsonl").unlink()
    (tmp_path / "private" / "Qwen3-VL-8B-Instruct" / "README.md").write_text("---\n: : [\n---\n")
    metadata, text = card(made.root, tmp_path / "exported")
    assert "license" not in metadata
    assert "The licence is not known here" in text
    assert "| data | train.jsonl, images |" in text
    assert "| step | 2 |" in text
    assert "| judge |" not in text
    assert "Figures" not in text


def test_held_out_shares_are_those_of_the_last_step_alone(tmp_path: Path) -> None:
    """And the rewards of the embedded judge on somebody's photographs are called what they are."""
    manifest = tmp_path / "train.jsonl"
    manifest.write_text('{"id": "a", "image": "a.jpg"}\n')
    config = RunConfig(max_steps=2, data=DataConfig(manifest=str(manifest)))
    made = run(tmp_path / "run", config, references=SHARES, start=SHARES, trained=SHARES, seconds=1.0)
    (made.root / "judge_domain.json").write_text('{"samples": 1, "looked_at": 1, "strange": 1}')
    metadata, last = card(made.root, tmp_path / "last")
    _, first = card(made.root, tmp_path / "first", step=1)
    assert "| this model | 90.0% (80.0% to 95.0%) | 10.0% (0.0% to 20.0%) |" in last
    assert "held-out" not in first
    assert "| step | 1 of 2 |" in first
    assert "| reward, mean | 0.250 | 0.500 |" in last
    assert "| reward, mean | 0.250 | 0.250 |" in first
    for text in (last, first):
        assert "> **These rewards mean nothing here" in text
        assert "| judge | the embedded judge of VCap-JAX" in text
        assert "| base | the tiny backbone of VCap-JAX's embedded world |" in text
    assert metadata["license"] == "apache-2.0"
    assert "base_model" not in metadata


def test_held_out_samples_of_ones_own_are_counted_apart_and_told_of_the_step(
    tmp_path: Path, photographs: RunConfig
) -> None:
    data = dataclasses.replace(photographs.data, heldout_share=0.5, heldout_seed=1)
    made = run(tmp_path / "run", dataclasses.replace(photographs, data=data))
    for step, value in ((1, 0.25), (2, 0.5)):
        reward = Value(value=value, low=0.125, high=0.75, n=9, method="m")
        Results(
            evaluator="judged",
            when=f"step-{step}",
            step=step,
            metrics={"reward": reward},
            items=9,
            failed=0,
            changes={"reward": dataclasses.replace(reward, value=value / 2)},
        ).write(made.evaluation("judged") / f"step-{step}.json")
    _, text = card(made.root, tmp_path / "card")
    assert "| held-out samples | 9: reward 0.5 (0.125 to 0.75), changed by 0.25 (0.125 to 0.75) since" in text
    held = sum(is_held_out(str(n), 0.5, 1) for n in range(3))
    assert 0 < held < 3
    assert f"train.jsonl, images: {3 - held} rows" in text


def test_held_out_samples_that_failed_are_not_counted_to_the_mean(
    tmp_path: Path, photographs: RunConfig
) -> None:
    data = dataclasses.replace(photographs.data, max_samples=2)
    made = run(tmp_path / "run", dataclasses.replace(photographs, data=data))
    reward = Value(value=0.5, low=0.125, high=0.75, n=7, method="m")
    results = Results(
        evaluator="judged", when="step-2", step=2, metrics={"reward": reward}, items=9, failed=2
    )
    results.write(made.evaluation("judged") / "step-2.json")
    _, text = card(made.root, tmp_path / "card")
    assert "| held-out samples | 9, of which 2 failed: reward 0.5 (0.125 to 0.75) (mean" in text
    assert "train.jsonl, images: 2 rows" in text


def test_the_judge_is_named_that_the_run_noted_wherever_it_keeps_judgements(
    tmp_path: Path, photographs: RunConfig
) -> None:
    judge = JudgeConfig(urls=("http://10.0.0.5:8000/v1",), store=str(tmp_path / "shared.sqlite"))
    made = run(tmp_path / "run", dataclasses.replace(photographs, judge=judge))
    note_judge(made, "/models/Qwen3-VL-32B", {})
    assert "| judge | Qwen3-VL-32B |" in card(made.root, tmp_path / "card")[1]


def test_the_settings_make_the_same_run(photographs: RunConfig, tmp_path: Path) -> None:
    mine = dataclasses.replace(photographs, sft=SFTConfig(captions="/home/someone/best.jsonl", epochs=3))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings(mine)))
    again = load_config(RunConfig, [tmp_path / "run.yaml"])
    assert again == dataclasses.replace(
        mine,
        model=ModelConfig(path="Qwen3-VL-8B-Instruct"),
        data=DataConfig(manifest="train.jsonl"),
        judge=JudgeConfig(urls=("http://ADDRESS",), model="Qwen3-VL-32B"),
        sft=SFTConfig(captions="best.jsonl", epochs=3),
        compilation_cache=None,
    )


def test_the_card_of_adapters_says_how_they_are_loaded(tmp_path: Path, photographs: RunConfig) -> None:
    lora = LoraConfig(rank=2, targets=("q_proj", "up_proj"))
    config = dataclasses.replace(photographs, model=dataclasses.replace(photographs.model, lora=lora))
    made = run(tmp_path / "run", config)
    metadata, text = card(made.root, tmp_path / "adapter", adapter=True)
    assert metadata["library_name"] == "peft"
    assert (metadata["base_model"], metadata["base_model_relation"]) == ("Qwen3-VL-8B-Instruct", "adapter")
    assert "lora" in metadata["tags"]
    assert "| trained | LoRA adapters of rank 2 on q_proj, up_proj |" in text
    assert 'PeftModel.from_pretrained(model, "adapter")' in text
    assert "`adapter_config.json` names the base by where it lay" in text
    assert "--step 2 --adapter" in text


def test_the_card_of_adapters_on_what_a_run_trained_names_that_and_no_untrained_base(
    tmp_path: Path, photographs: RunConfig
) -> None:
    run(tmp_path / "full", photographs)
    lora = ModelConfig(
        path=str(tmp_path / "full"), step=2, lora=LoraConfig(rank=2, targets=("q_proj", "up_proj"))
    )
    made = run(tmp_path / "private" / "run", dataclasses.replace(photographs, model=lora))
    metadata, text = card(made.root, tmp_path / "adapter", adapter=True)
    assert metadata["license"] == "other"
    assert not {"base_model", "base_model_relation"} & set(metadata)
    assert 'base = "BASE"' in text
    assert "The base is `full` at step 2" in text
    assert "`python launch/convert.py to-hf full FOLDER --step 2`" in text
    assert "| base | `full` at step 2 from `Qwen3-VL-8B-Instruct` |" in text
    # Merged they lie on what is named.
    assert card(made.root, tmp_path / "merged")[0]["base_model"] == "Qwen3-VL-8B-Instruct"


def test_the_card_of_adapters_on_an_orbax_folder_has_it_exported_first(
    tmp_path: Path, photographs: RunConfig
) -> None:
    base = checkpoint(tmp_path / "private" / "orbax")
    (base / "params").mkdir()
    lora = ModelConfig(path=str(base), lora=LoraConfig(rank=2, targets=("q_proj", "up_proj")))
    made = run(tmp_path / "run", dataclasses.replace(photographs, model=lora))
    metadata, text = card(made.root, tmp_path / "adapter", adapter=True)
    assert not {"base_model", "base_model_relation"} & set(metadata)
    assert 'base = "BASE"' in text
    assert "The base is the Orbax folder `orbax` and must" in text
    assert "`python launch/convert.py to-hf orbax FOLDER`. That FOLDER is the BASE below." in text


def test_the_card_of_a_supervised_run_from_a_run(tmp_path: Path, photographs: RunConfig) -> None:
    run(tmp_path / "first", photographs)
    later = dataclasses.replace(
        photographs,
        model=ModelConfig(path=str(tmp_path / "first"), step=1),
        sft=SFTConfig(captions="/data/best.jsonl", max_steps=4),
    )
    made = run(tmp_path / "later", later, kind="supervised")
    metadata, text = card(made.root, tmp_path / "exported")
    assert "sft" in metadata["tags"]
    assert "| base | `first` at step 1 from `Qwen3-VL-8B-Instruct` |" in text
    assert "| captions | best.jsonl |" in text
    assert "| step | 2 of 4 |" in text
    assert "| negative log-likelihood of a token | 2.000 | 1.000 |" in text
    assert "| reward |" not in text
    assert "launch/sft.py" in text


def test_the_card_of_a_checkpoint_that_no_run_made_is_short(tmp_path: Path) -> None:
    base = checkpoint(tmp_path / "private" / "orbax")
    metadata, text = card(base, tmp_path / "exported", step=None)
    assert metadata["license"] == "other"
    assert "base_model" not in metadata
    assert f"converted from the checkpoint `orbax` by VCap-JAX {__version__}" in text
    assert "Figures" not in text
    assert "Make it again" not in text
    # The card of the packaged backbone is this one.
    assert (
        yaml.safe_load((BACKBONE_FOLDER / "README.md").read_text().split("---")[1])["license"] == "apache-2.0"
    )


def test_names_are_public() -> None:
    for private, public in {
        "/data/photos/train.jsonl": "train.jsonl",
        "~/train.jsonl": "train.jsonl",
        "../up/": "up",
        "C:\\data\\train.jsonl": "train.jsonl",
        "https://host:1/v1": "http://ADDRESS",
        "/runs/mine at step 5": "mine at step 5",
        "Qwen/Qwen3-VL-8B": "Qwen/Qwen3-VL-8B",
        "runs/mine": "runs/mine",
    }.items():
        assert public_text(private) == public
    cached = Path("/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-VL-8B-Instruct/snapshots/0c35")
    assert base_name(cached) == "Qwen/Qwen3-VL-8B-Instruct"
    assert base_name(BACKBONE_FOLDER) is None


def test_names_break_nothing(tmp_path: Path) -> None:
    """A manifest, a run and a folder whose names hold what Markdown and YAML live by."""
    odd = 'a|b`c"\n# <b>'
    manifest = tmp_path / f"{odd}.jsonl"
    manifest.write_text('{"id": "a", "image": "a.jpg"}\n')
    made = run(
        tmp_path / f"run {odd}", RunConfig(name=odd, max_steps=2, data=DataConfig(manifest=str(manifest)))
    )
    _, text = card(made.root, tmp_path / f"to {odd}")
    assert 'a\\|b`c" # &lt;b>.jsonl' in text
    assert not [line for line in text.splitlines()[1:] if line.startswith("# ")]
    assert compile(text.split("```python\n")[1].split("```")[0], "card", "exec")
