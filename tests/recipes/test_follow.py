"""A run is followed: every checkpoint that is there is evaluated once, until the run has ended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest

from vcap_jax.evals.config import EvaluationConfig, EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.recipes import follow as module
from vcap_jax.recipes.evaluation_request import EvaluationRequest, JudgesConfig, Say
from vcap_jax.recipes.follow import follow
from vcap_jax.report.evaluations import evaluations_of
from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.system.shutdown import Stopped
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError

VALUE = Value(value=0.5, low=0.25, high=0.75, n=4, method="m")
OTHER = Value(value=0.1, low=0.0, high=0.25, n=4, method="m")


class Run:
    """A run that goes on while it is followed: ``then`` says what happens each time that somebody waits for it."""

    def __init__(self, folder: Path, config: RunConfig | None = None) -> None:
        self.folder = RunFolder.open(folder, config or RunConfig())
        self.asked: list[int] = []
        self.then: list[list[int] | None] = []
        self.request = EvaluationRequest(
            benchmarks=("capmas",), by=str(folder), data=folder, out=Path("nowhere"), judges=JudgesConfig()
        )

    def save(self, *steps: int, keep: int = 2) -> None:
        with Checkpointer(self.folder.checkpoints, keep=keep) as checkpoints:
            for step in steps:
                checkpoints.save(step, {"params": jnp.zeros(1)})

    def wait(self, seconds: float) -> None:
        steps = self.then.pop(0)
        if steps is None:
            self.folder.summary.write_text("{}")
        else:
            self.save(*steps)

    def evaluated(self, request: EvaluationRequest, say: Say) -> dict[str, Path]:
        """As ``evaluate`` leaves it."""
        assert isinstance(request.step, int)
        folder = request.out / "capmas"
        if folder.exists():
            return {"capmas": folder}
        with Checkpointer(self.folder.checkpoints, read_only=True) as checkpoints:
            checkpoints.existing_step(request.step)
        self.asked.append(request.step)
        folder.mkdir(parents=True)
        row = {"metrics": {"clair": VALUE.row()}, "items": 5, "failed": 1}
        (folder / "results.json").write_text(json.dumps(row))
        return {"capmas": folder}

    def follow(self) -> list[int]:
        return follow(self.request, print, evaluated=self.evaluated, wait=self.wait)


def test_every_checkpoint_is_evaluated_once_until_the_run_has_ended(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.then = [[], [2], [], [4, 6], None]  # at first there is no folder of checkpoints
    assert run.follow() == [2, 4, 6]
    found = evaluations_of(run.folder)["capmas"]
    assert [(r.step, r.when, r.items, r.failed) for r in found] == [
        (step, f"step-{step}", 5, 1) for step in (2, 4, 6)
    ]
    assert found[0].metrics == {"clair": VALUE}
    assert (run.folder.root / "followed" / "step-4" / "capmas" / "results.json").exists()
    # Begun again, it goes through those that are there, and finds all done.
    assert run.follow() == []
    assert run.asked == [2, 4, 6]


def test_another_judge_scores_all_steps_anew_and_those_too_that_are_gone(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.then = [[2], [4], [6], None]
    run.follow()

    def by_another(request: EvaluationRequest, say: Say) -> dict[str, Path]:
        path = request.out / "capmas" / "results.json"
        row = json.loads(path.read_text())
        path.write_text(json.dumps({**row, "metrics": {"clair": OTHER.row()}}))
        return {"capmas": path.parent}

    assert follow(run.request, print, evaluated=by_another, wait=run.wait) == [2, 4, 6]
    assert [r.metrics["clair"] for r in evaluations_of(run.folder)["capmas"]] == [OTHER] * 3


def test_a_checkpoint_that_the_run_removes_meanwhile_is_left_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.save(2, 4)

    def slow(request: EvaluationRequest, say: Say) -> dict[str, Path]:
        if request.step == 2:
            run.save(6)  # which removes step 2
        return run.evaluated(request, say)

    run.folder.summary.write_text("{}")
    said: list[str] = []
    assert follow(run.request, said.append, evaluated=slow, wait=run.wait) == [4, 6]
    assert any(line.startswith("step 2 is left out: ") for line in said)


def test_what_is_wrong_with_a_checkpoint_that_is_there_is_raised(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.save(2)

    def broken(request: EvaluationRequest, say: Say) -> dict[str, Path]:
        raise CheckpointError("does not fit")

    with pytest.raises(CheckpointError, match="does not fit"):
        follow(run.request, print, evaluated=broken, wait=run.wait)


def test_only_a_run_is_followed_and_by_what_it_does_not_evaluate_itself(tmp_path: Path) -> None:
    own = EvaluationConfig(evaluators=(EvaluatorConfig(use="capmas", options={"data": "x"}),))
    with pytest.raises(EvaluatorError, match="the run itself evaluates by capmas"):
        Run(tmp_path / "run", RunConfig(evaluation=own)).follow()
    run = Run(tmp_path / "other")
    with pytest.raises(EvaluatorError, match="is no run"):
        follow(replace(run.request, by=str(tmp_path)), print)


def test_a_signal_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run")
    run.save(2)
    monkeypatch.setattr(module, "requested", lambda: True)
    with pytest.raises(Stopped, match="after 0 checkpoints"):
        run.follow()
