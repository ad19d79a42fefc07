"""A run on a user's own data with held-out samples: from the start to the best checkpoint, and resumed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bare_context import bare_context
from vcap_jax import references
from vcap_jax.configuration import ConfigError, dump_config, load_config
from vcap_jax.data.config import DataConfig
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.protocol import read_items
from vcap_jax.grpo import trainer
from vcap_jax.recipes.grpo import run
from vcap_jax.recipes.sft import run_sft
from vcap_jax.references import heldout_pool
from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.ngrams import CiderD
from vcap_jax.run.checkpoint_source import checkpoint_source
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.inputs import check_inputs
from vcap_jax.run.manifest_note import remember_samples
from vcap_jax.run.setup import heldout_samples, manifest_samples
from vcap_jax.system.shutdown import Stopped
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.world.dataset import write_dataset

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "mesh.fsdp=1",
    "max_steps=3",
    "grpo.groups_per_step=2",
    "grpo.groups_per_micro_batch=2",
    "rollout.groups_per_batch=2",
    "rollout.group_size=2",
    "rollout.max_completion_length=48",
    "evaluation.every=1",
    "logging.keep=1",
    "logging.save_every=5",
    "logging.keep_best=judged/tokens",
    "logging.best_is=lowest",
    "sft.max_steps=1",
    "sft.groups_per_step=2",
    "sft.groups_per_micro_batch=2",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "train", "image", "train", 6, seed=0)
    write_dataset(folder / "held", "image", "heldout", 3, seed=0)
    return folder


def configured(data: Path, *settings: str) -> RunConfig:
    own = [f"data.manifest={data / 'train' / 'manifest.jsonl'}"]
    return load_config(RunConfig, [ROOT / "configs" / "embedded" / "image.yaml"], [*SMALL, *own, *settings])


def held(data: Path) -> str:
    return f"data.heldout={data / 'held' / 'manifest.jsonl'}"


def evaluations(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "evaluations" / "judged").iterdir()}


@pytest.mark.long
def test_a_run_tells_whether_training_helped_and_a_resumed_one_tells_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(data, held(data))
    # Pages are titled by the last two parts of a path.
    alone, stopped = (tmp_path / name / "runs" / "mine" for name in ("alone", "stopped"))
    said: list[str] = []
    summary = run(config, RunFolder.open(alone, config), say=said.append)
    with monkeypatch.context() as patched:
        asked = iter([False, True])  # by the end of step 2 a signal has come
        patched.setattr(trainer, "requested", lambda: next(asked, True))
        with pytest.raises(Stopped):
            run(config, RunFolder.open(stopped, config), say=lambda text: None)
    assert not (stopped / "summary.json").exists()
    again = run(config, RunFolder.open(stopped, config, resume=True), say=lambda text: None)

    ends = (".jsonl", ".items.jsonl", ".json")
    whens = ("start", "step-1", "step-2", "trained")
    assert set(evaluations(alone)) == {
        *(when + end for when in whens for end in ends),
        "references.items.jsonl",
        "references.json",
    }
    assert evaluations(stopped) == evaluations(alone)
    assert (stopped / "before_after.html").read_bytes() == (alone / "before_after.html").read_bytes()
    rows = [read_metrics(folder / "metrics.jsonl") for folder in (alone, stopped)]
    assert [deterministic(row) for row in rows[0]] == [deterministic(row) for row in rows[1]]
    assert all("eval/judged/reward" in row for row in rows[0])

    trained = json.loads((alone / "evaluations" / "judged" / "trained.json").read_text())
    assert trained["changes"].keys() == trained["metrics"].keys()
    assert trained["metrics"]["judge_failed"]["value"] == 0
    assert summary["evaluations"]["judged"]["trained"] == trained
    # The best by the lowest number of tokens: named, kept, found again.
    tokens = {
        r["step"]: r["metrics"]["tokens"]["value"]
        for r in summary["evaluations"]["judged"].values()
        if r["step"]
    }
    best = min(tokens, key=lambda step: (tokens[step], step))
    assert summary["best"] == again["best"]
    assert (summary["best"]["step"], summary["best"]["value"]) == (best, tokens[best])
    for folder in (alone, stopped):
        with Checkpointer(folder / "checkpoints", read_only=True) as checkpoints:
            assert set(checkpoints.steps()) == {best, 3}
        assert checkpoint_source(str(folder), "best").step == best
    assert any(line.startswith(f"best checkpoint: step {best} by judged/tokens") for line in said)


@pytest.mark.long
def test_a_supervised_run_is_told_the_same(data: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.jsonl"
    rows = [json.loads(line) for line in (data / "train" / "manifest.jsonl").open(encoding="utf-8")]
    captions.write_text(
        "".join(json.dumps({"id": row["id"], "references": ["A red circle."]}) + "\n" for row in rows)
    )
    config = configured(data, held(data), f"sft.captions={captions}")
    summary = run_sft(config, RunFolder.open(tmp_path / "run", config), say=lambda text: None)
    judged = summary["evaluations"]["judged"]
    assert set(judged) == {"start", "trained", "references"}
    assert judged["trained"]["metrics"]["reward"]["n"] == 3
    assert summary["best"]["step"] == 1


@pytest.mark.parametrize("change", [None, "other pictures", "no references kept"])
def test_a_run_from_another_one_compares_held_out_captions_with_the_same_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str | None
) -> None:
    """Written anew they were the trained policy's, and rewards of the two were by different references."""

    def by_policy(ctx: RunContext, path: Path, samples: Sequence[Sample]) -> ReferencePool:
        if not path.exists():
            entries = [PoolEntry(id=s.id, references=(f"by {ctx.config.model.path}",)) for s in samples]
            ReferencePool(entries).write(path)
        return ReferencePool.read(path)

    monkeypatch.setattr(references, "references_by_policy", by_policy)
    said: list[str] = []

    def compared_with(name: str, start: str, samples: Sequence[Sample]) -> set[tuple[str, ...]]:
        config = load_config(RunConfig, [], [f"model.path={start}"])
        ctx = bare_context(config, tmp_path / name, say=said.append)
        (ctx.folder.checkpoints).mkdir(parents=True, exist_ok=True)
        ctx.folder.config.write_text(dump_config(config))
        remember_samples(ctx.folder, "mine.jsonl", [], samples)
        return set(heldout_pool(ctx, samples).texts().values())

    held = [Sample(id=name, images=(Path(f"{name}.png"),)) for name in "ab"]
    assert compared_with("first", "base", held) == {("by base",)}
    first = str(tmp_path / "first")
    if change == "other pictures":
        held = [replace(sample, images=(Path("other.png"),)) for sample in held]
    elif change == "no references kept":
        (tmp_path / "first" / "references" / "heldout.jsonl").unlink()
    assert compared_with("second", first, held) == {("by base" if change is None else f"by {first}",)}
    told = "are compared with the references that" if change is None else "judged/reward does not compare"
    assert [told in line for line in said] == [True]
    shutil.rmtree(first)  # once it has begun, a run needs the other's references no more
    assert compared_with("second", first, held) == {("by base" if change is None else f"by {first}",)}
    assert len(said) == 1


@pytest.mark.slow
def test_imitation_of_a_supervised_run_is_that_of_a_training_run(data: Path, tmp_path: Path) -> None:
    """Words are weighed by how many of the references have them that are trained on, not of those held out."""
    texts: dict[str, dict[str, tuple[str, ...]]] = {}
    for share in ("train", "held"):
        rows = [json.loads(line) for line in (data / share / "manifest.jsonl").open(encoding="utf-8")]
        texts[share] = {
            row["id"]: (f"A {share} circle {n} of red beside a blue square.",) for n, row in enumerate(rows)
        }
    for name, shares in (("captions", ["train"]), ("references", ["train", "held"])):
        entries = [PoolEntry(id=k, references=v) for share in shares for k, v in texts[share].items()]
        ReferencePool(entries).write(tmp_path / f"{name}.jsonl")
    config = configured(
        data, held(data), "reward.family=imitation", f"sft.captions={tmp_path / 'captions.jsonl'}"
    )
    with pytest.raises(ConfigError, match=r"reward.family imitation .* give the pool with data.references"):
        run_sft(config, RunFolder.open(tmp_path / "refused", config), say=lambda text: None)
    config = replace(config, data=replace(config.data, references=str(tmp_path / "references.jsonl")))
    run_sft(config, RunFolder.open(tmp_path / "run", config), say=lambda text: None)
    items = read_items(tmp_path / "run" / "evaluations" / "judged" / "trained.items.jsonl")
    cider = CiderD([*texts["train"].values(), *texts["held"].values()])
    expected = {item.id: cider.score(item.captions[0], list(texts["held"][item.id])) for item in items}
    assert {item.id: item.values["cider"] for item in items} == pytest.approx(expected)


def test_a_share_of_the_manifest_is_held_out_and_not_trained_on(data: Path) -> None:
    said: list[str] = []
    config = configured(data, "data.heldout_share=0.4", "data.heldout_seed=1")
    trained, heldout = manifest_samples(config, said.append), heldout_samples(config)
    assert {s.id for s in trained}.isdisjoint(s.id for s in heldout)
    assert len(trained) + len(heldout) == 6
    assert heldout
    (line,) = said
    assert line.endswith(f"manifest.jsonl: {len(heldout)} of 6 samples")


def test_a_pool_replaces_the_rows_own_references_until_both_are_joined_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page said that what "still" has no reference is left out: of the pool that a run wrote for the other rows,
    as it is given on to the next, just those that have one."""
    monkeypatch.chdir(tmp_path)
    manifest, pool = Path("my/manifest.jsonl"), Path("runs/mine/references/train.jsonl")
    for file in (manifest, pool):
        file.parent.mkdir(parents=True)
    rows = [
        {"id": str(n), "image": f"{n}.png"} | ({"references": ["own"]} if n % 2 else {}) for n in range(6)
    ]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = manifest_samples(RunConfig(data=DataConfig(manifest=str(manifest))), print)
    ReferencePool(PoolEntry(id=s.id, references=("written",)) for s in samples if not s.references).write(
        pool
    )

    def learned(name: Path) -> list[str]:
        config = RunConfig(data=DataConfig(manifest=str(manifest), references=str(name)))
        ctx = bare_context(config, tmp_path / name.stem)
        ctx.folder.root.mkdir()
        found = references.reference_pool(ctx, samples)
        return [found[sample.id].references[0] for sample in found.covered(samples, print)]

    assert learned(pool) == ["written"] * 3
    page = (Path(__file__).parents[2] / "docs" / "your_own_data.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert learned(Path("pools/both.jsonl")) == ["written", "own"] * 3


def test_what_cannot_be_held_out_is_told_before_work(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.heldout_share is 1e-05, which holds out none of the 6"):
        check_inputs(configured(data, "data.heldout_share=0.00001"), policy=False)
    with pytest.raises(ConfigError, match="both given"):
        configured(data, held(data), "data.heldout_share=0.1")
    with pytest.raises(ConfigError, match="the embedded world has held-out scenes of its own"):
        configured(data, "data.manifest=null", "data.heldout_share=0.1")
    with pytest.raises(ManifestError, match="the id of the held-out sample"):
        check_inputs(configured(data, f"data.heldout={data / 'train' / 'manifest.jsonl'}"), policy=False)
    clips = data / "clips.jsonl"
    clips.write_text('{"id": "c", "video": "c.mp4"}\n')
    with pytest.raises(ConfigError, match=r"\(data.heldout\) has no images"):
        check_inputs(configured(data, f"data.heldout={clips}"), policy=False)
    assert check_inputs(configured(data, held(data)), policy=False) == []
