"""Distillation end to end in a very small embedded world, and that nothing is done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.config import RunConfig
from vcap_jax.configuration import load_config
from vcap_jax.data.references import ReferencePool
from vcap_jax.distill import Teacher, distill
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[1]
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


@pytest.mark.slow
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


def test_two_teachers_of_one_name_are_refused(tmp_path: Path) -> None:
    config = RunConfig()
    folder = RunFolder.open(tmp_path / "all", config)
    with pytest.raises(ValueError, match="two teachers of one name: e1, e1"):
        distill(config, folder, [Teacher(name="e1", source="a"), Teacher(name="e1", source="b")])
