"""Evaluations in a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcap_jax.report.evaluations import START, TRAINED, Results, evaluations_of, forget_after
from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder


def evaluated(folder: RunFolder, name: str, when: str, step: int | None) -> None:
    """An evaluation with all its files."""
    results = Results(evaluator=name, when=when, step=step, metrics={}, items=0, failed=0)
    path = folder.evaluation(name) / f"{when}.json"
    results.write(path)
    path.with_suffix(".jsonl").write_text("")
    path.with_suffix(".items.jsonl").write_text("")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path, resumed=True)
    for name in ("heldout", "judged"):
        evaluated(folder, name, START, 0)
        evaluated(folder, name, "references", None)
        for step in (5, 10, 15):
            evaluated(folder, name, f"step-{step}", step)
        evaluated(folder, name, TRAINED, 20)
    return folder


def left(folder: RunFolder) -> dict[str, list[str]]:
    return {name: [one.when for one in several] for name, several in evaluations_of(folder).items()}


def test_evaluations_of_steps_that_are_done_again_are_forgotten(folder: RunFolder) -> None:
    (folder.evaluation("judged") / "step-15.json").unlink()  # killed while its captions were drawn
    gone = forget_after(folder, 9, total=20)
    assert set(gone) == {
        f"{name}/{when}" for name in ("heldout", "judged") for when in ("step-10", "step-15", TRAINED)
    }
    kept = [START, "step-5", "references"]
    assert left(folder) == {"heldout": kept, "judged": kept}
    files = {path.name for path in folder.evaluation("judged").iterdir()}
    assert files == {f"{when}{end}" for when in kept for end in (".json", ".jsonl", ".items.jsonl")}


@pytest.mark.parametrize(("step", "gone"), [(20, 0), (15, 1), (10, 2), (0, 4)])
def test_those_of_steps_that_are_not_done_again_stay(folder: RunFolder, step: int, gone: int) -> None:
    assert len(forget_after(folder, step, total=20)) == 2 * gone
    assert forget_after(folder, step, total=20) == ()


@pytest.mark.parametrize(("items", "share"), [(8, 0.25), (0, 0.0)])
def test_metrics_have_the_values_and_the_share_that_failed(items: int, share: float) -> None:
    value = Value(value=0.5, low=0.4, high=0.6, n=6, method="")
    found = Results(
        evaluator="mine", when="step-5", step=5, metrics={"f1": value}, items=items, failed=items // 4
    )
    assert found.columns() == {"eval/mine/f1": 0.5, "eval/mine/failed": share}


def test_a_run_without_evaluations_has_none_to_forget(tmp_path: Path) -> None:
    assert forget_after(RunFolder(tmp_path, resumed=True), 0, total=20) == ()


@pytest.mark.parametrize("content", ["", '{"evaluator": "judged", "when": "star'])
def test_what_a_kill_left_of_a_file_of_results_is_none(folder: RunFolder, content: str) -> None:
    before = left(folder)
    (folder.evaluation("judged") / ".trained.0123456789abcdef.json").write_text(content)
    assert left(folder) == before
