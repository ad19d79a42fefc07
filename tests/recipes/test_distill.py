"""Distillation end to end in a very small embedded world, and that nothing is done twice."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from vcap_jax.commands.distill import main as command
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, Provenance, ReferencePool
from vcap_jax.parallel.fingerprint import fingerprint
from vcap_jax.parallel.processes import ALONE
from vcap_jax.recipes import distill as module
from vcap_jax.recipes.distill import Teacher, check_distillation, distill
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.run.config import RunConfig
from vcap_jax.run.context import RunContext
from vcap_jax.run.keeping_best import BestKeeper

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "world.train_scenes=4",
    "world.heldout_scenes=2",
    "rollout.groups_per_batch=4",
    "rollout.group_size=2",
    "rollout.max_completion_length=48",
    "grpo.groups_per_step=4",
    "grpo.groups_per_micro_batch=4",
    "sft.groups_per_step=2",
    "sft.groups_per_micro_batch=2",
    "sft.max_steps=2",
    "mesh.fsdp=1",
]


@pytest.mark.long
def test_students_learn_the_best_of_their_teachers(tmp_path: Path) -> None:
    config = load_config(RunConfig, [ROOT / "configs" / "embedded" / "image.yaml"], SMALL)
    folder = RunFolder.open(tmp_path / "all", config)
    summary = distill(config, folder, [Teacher(name="self")], candidates=2, say=lambda _: None)
    stage = folder.root / "self"
    candidates = ReferencePool.read(stage / "candidates.jsonl")
    best = ReferencePool.read(stage / "best.jsonl")
    assert best.header is not None
    assert best.header.provenance.writer == "best of 2 by self"
    scores = {row["id"]: row["rewards"] for row in map(json.loads, (stage / "scores.jsonl").open())}
    for entry in best.entries():
        drawn, rewards = candidates[entry.id].references, scores[entry.id]
        assert entry.references == (drawn[rewards.index(max(rewards))],)
    assert len(read_metrics(stage / "student" / "metrics.jsonl")) == 2
    noted = json.loads((stage / "student" / "references.json").read_text())
    assert noted["digest"] == best.digest()
    assert list(summary["rows"]) == ["base", "distilled from self"]
    assert summary["stages"]["self"]["selection"]["best"] >= summary["stages"]["self"]["selection"]["mean"]

    # The student as the next teacher; what is there is left as it is.
    files = [path for path in stage.rglob("*") if path.is_file() and path.name != "config.yaml"]
    before = {path: path.stat().st_mtime_ns for path in files}
    folder = RunFolder.open(folder.root, config, resume=True)
    teachers = [Teacher(name="self"), Teacher(name="student", source=str(stage / "student"))]
    summary = distill(config, folder, teachers, candidates=2, say=lambda _: None)
    assert list(summary["rows"]) == ["base", "distilled from self", "student", "distilled from student"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    # A teacher that is a student captions as the student did.
    rows = summary["rows"]
    assert rows["student"]["coverage"] == rows["distilled from self"]["coverage"]

    # What one teacher has begun is not gone on with by another of its name, whatever of it is removed.
    (stage / "teacher.json").unlink()
    (stage / "candidates.jsonl").unlink()
    other = Teacher(name="self", source=str(stage / "student"))
    with pytest.raises(
        ConfigError, match=r"by self and was to be another one \(weights differ\): remove the folder"
    ):
        distill(config, RunFolder.open(folder.root, config, resume=True), [other], candidates=2, say=print)


def test_two_teachers_of_one_name_are_refused(tmp_path: Path) -> None:
    config = RunConfig()
    folder = RunFolder.open(tmp_path / "all", config)
    with pytest.raises(ValueError, match="two teachers of one name: e1, e1"):
        distill(config, folder, [Teacher(name="e1", source="a"), Teacher(name="e1", source="b")])
    twice = ["--teacher", "e1=a", "--teacher", "e1=b", "--dir", str(tmp_path / "new")]
    assert command(["--config", "configs/embedded/image.yaml", *twice]) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "name", ["..", ".", ".e1", "a/b", "e 1", "", "data", "references", "config.yaml", "judgements.sqlite"]
)
def test_a_teacher_is_not_called_as_what_else_lies_in_the_folder(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"a teacher cannot be called {re.escape(repr(name))}: its folder"):
        check_distillation(RunConfig(), ["e1.5_b-2", "größer", name], 8, ALONE)


def test_the_folder_of_rounds_is_refused(tmp_path: Path) -> None:
    """Their summary would be replaced, and a teacher named e1 would write into their first round."""
    config = load_config(RunConfig, [], ["reward.family=random"])
    folder = RunFolder.open(tmp_path / "all", config)
    folder.claim("self-improvement")
    with pytest.raises(RunFolderError, match="is self-improvement, this command's is distillation"):
        distill(config, folder, [Teacher(name="e1", source="runs/e1")], say=lambda _: None)


def test_candidates_that_would_all_be_the_same_are_refused(tmp_path: Path) -> None:
    greedy = ["rollout.sampling.temperature=0", "rollout.group_size=1"]
    config = load_config(RunConfig, [], greedy)
    folder = RunFolder.open(tmp_path / "all", config)
    with pytest.raises(
        ConfigError, match=r"8 candidates of each sample at temperature 0 .*rollout\.sampling"
    ):
        distill(config, folder, [Teacher(name="self")], say=lambda _: None)


class Reached(Exception):
    """The student's turn has come."""


def test_a_teacher_is_evaluated_where_students_keep_their_best_by_held_out_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only students have held-out samples of one's own scored."""
    nothing: Any = None
    config = load_config(
        RunConfig, [], ["reward.family=random", "logging.keep_best=judged/reward", "evaluation.every=1"]
    )
    folder = RunFolder.open(tmp_path / "all", config)
    policy: Any = SimpleNamespace(trainable={})
    ctx = RunContext(config, folder, policy, nothing, nothing, lambda text: None)

    def evaluations(ctx: RunContext, world: object) -> None:
        del world
        BestKeeper(ctx.config.logging, ctx.folder, ctx.processes, [])
        # Who looks at those samples would say that nothing is held out.
        assert "judged" not in [one.use for one in ctx.config.evaluation.evaluators]
        raise Reached

    prepared = SimpleNamespace(ctx=ctx, samples=[], world=None, heldout=())
    writer = SimpleNamespace(provenance=SimpleNamespace(weights="w"))
    monkeypatch.setattr(module, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(module, "drawing", nullcontext)
    monkeypatch.setattr(module, "policy_writer", lambda *_, **__: writer)
    monkeypatch.setattr(module, "write_shared_pool", lambda *_: None)
    monkeypatch.setattr(module, "Evaluations", evaluations)
    with pytest.raises(Reached):
        distill(config, folder, [Teacher(name="self")], say=lambda _: None)


def test_all_teachers_have_the_same_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came after the manifest had changed taught what happened to have references."""
    config = load_config(RunConfig, [], ["reward.family=random", "data.manifest=mine.jsonl"])
    folder = RunFolder.open(tmp_path / "all", config)
    samples = [Sample(id=str(n), images=(Path(f"{n}.png"),)) for n in range(3)]
    prepared = SimpleNamespace(ctx=None, samples=samples, world=None, heldout=())

    def drawing(given: object) -> None:
        raise Reached

    monkeypatch.setattr(module, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(module, "drawing", drawing)
    for _ in range(2):
        with pytest.raises(Reached):
            distill(config, folder, [Teacher(name="self")], say=lambda _: None)
    prepared.samples = samples[1:]
    with pytest.raises(ConfigError, match="to train on it has 2 samples, and had 3"):
        distill(config, folder, [Teacher(name="late")], say=lambda _: None)


@pytest.mark.parametrize(
    ("source", "candidates", "refused"),
    [
        ("runs/e1", 4, None),
        ("runs/e1", 8, "complete with 4 candidates per sample, now it is 8: give --candidates 4"),
        ("moved/e1", 4, None),
        ("runs/e2", 4, "complete by runs/e1, and runs/e2 has other weights"),
    ],
)
def test_a_complete_teacher_is_used_for_what_it_is(
    source: str, candidates: int, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    weights = {"runs/e1": 1.0, "moved/e1": 1.0, "runs/e2": 2.0}

    def prepare(config, folder, say, *, captioner, processes):
        loaded.append(captioner)
        policy = SimpleNamespace(trainable={"w": jnp.full(3, weights[captioner])}, frozen={})
        return SimpleNamespace(ctx=SimpleNamespace(policy=policy))

    def run_sft(*_, **__):
        raise Reached

    monkeypatch.setattr(module, "prepare", prepare)
    monkeypatch.setattr(module, "run_sft", run_sft)
    folder = RunFolder.open(tmp_path / "all", RunConfig())
    stage = folder.root / "e1"
    provenance = Provenance(
        writer="best of 4 by e1",
        weights=fingerprint({"w": jnp.ones(3)}, {}),
        seed=0,
        settings={"per_sample": 4},
        asked="",
    )
    ReferencePool([PoolEntry(id="a", references=("A dog.",))]).write(stage / "best.jsonl", provenance)
    (stage / "teacher.json").write_text(json.dumps({"teacher": "runs/e1"}))
    with pytest.raises(ConfigError if refused else Reached, match=refused) as raised:
        distill(
            RunConfig(),
            folder,
            [Teacher(name="e1", source=source)],
            candidates=candidates,
            say=lambda _: None,
        )
    if refused:
        assert f"remove {stage}" in str(raised.value)
    assert loaded == ([source] if source != "runs/e1" else [])
