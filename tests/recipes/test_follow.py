"""A run is followed: every checkpoint that is there is evaluated once, until the run has ended."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

from vcap_jax.evals.config import EvaluationConfig, EvaluatorConfig
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.recipes import follow as module
from vcap_jax.recipes.evaluate import NothingMeasured
from vcap_jax.recipes.evaluation_request import EvaluationRequest, JudgesConfig, Say
from vcap_jax.recipes.follow import GONE_AFTER_S, FollowingFailed, follow
from vcap_jax.report.evaluations import evaluations_of
from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.errors import JudgeOutage, JudgeUnavailable
from vcap_jax.run.config import RunConfig
from vcap_jax.system.file_locks import alone
from vcap_jax.system.shutdown import Stopped
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError

VALUE = Value(value=0.5, low=0.25, high=0.75, n=4, method="m")
NOTHING = Value(value=math.nan, low=math.nan, high=math.nan, n=0, method="m")
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
        row = {"metrics": {"clair": VALUE.row()}, "items": 5, "failed": 1, "seconds": {"judge": 1.0}}
        row |= {"mode": "strict", "endpoints": {"judge": {"model": "judge-8b"}}}
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
    assert found[0].asked == {"mode": "strict", "endpoints": {"judge": {"model": "judge-8b"}}}
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


@pytest.mark.parametrize("left", ["nothing", "some"])
def test_a_checkpoint_that_the_run_removes_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Also where its folder is still there, from which its files go one by one."""
    run = Run(tmp_path / "run")
    run.save(2, 4)
    restore = ocp.CheckpointManager.restore

    def going(self: object, step: int, **named: object) -> object:
        folder = run.folder.checkpoints / "2"
        if step == 2 and left == "nothing":
            shutil.rmtree(folder)
        elif step == 2:
            next(path for path in folder.rglob("*") if path.is_file()).unlink()
        else:
            return restore(self, step, **named)
        raise ValueError("NOT_FOUND: Error opening zarr driver")

    monkeypatch.setattr(ocp.CheckpointManager, "restore", going)

    def loading(request: EvaluationRequest, say: Say) -> dict[str, Path]:
        assert isinstance(request.step, int)
        with Checkpointer(run.folder.checkpoints, read_only=True) as checkpoints:
            checkpoints.restore({"params": jnp.zeros(1)}, request.step)
        return run.evaluated(request, say)

    run.folder.summary.write_text("{}")
    said: list[str] = []
    assert follow(run.request, said.append, evaluated=loading, wait=run.wait) == [4]
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


def test_an_undertaking_of_several_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    """Its own folder never has a checkpoint; its parts may come only while it is followed."""
    run = Run(tmp_path / "both")
    for name in ("e1", "self/student"):  # a round; of distillation
        RunFolder.open(run.folder.root / name, RunConfig())
    several = r"\S+both/e1, \S+both/self/student"
    with pytest.raises(EvaluatorError, match=f"both holds runs: give --by one of them: {several}"):
        run.follow()
    later = Run(tmp_path / "later")

    def begun(seconds: float) -> None:
        RunFolder.open(later.folder.root / "e1", RunConfig())

    with pytest.raises(EvaluatorError, match=r"them: \S+later/e1"):
        follow(later.request, print, evaluated=later.evaluated, wait=begun)


def test_it_ends_with_how_many_steps_have_figures_and_none_is_a_failure(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.then = [None]
    with pytest.raises(FollowingFailed, match=r"no step has figures .*logging\.keep"):
        run.follow()
    run.save(2, 4)
    said: list[str] = []
    for _ in range(2):
        follow(run.request, said.append, evaluated=run.evaluated, wait=run.wait)
        assert said[-1] == f"{run.folder.root} has ended: 2 steps have figures of capmas"


def test_a_step_that_the_judge_gives_no_figures_of_is_told_and_the_next_ones_turn_comes(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run")
    run.then = [[2, 4], [6], None]

    def refusing(request: EvaluationRequest, say: Say) -> dict[str, Path]:
        found = run.evaluated(request, say)
        if request.step == 2:
            path = request.out / "capmas" / "results.json"
            row = json.loads(path.read_text()) | {"metrics": {"clair": NOTHING.row()}, "failed": 5}
            path.write_text(json.dumps(row))
            raise NothingMeasured("capmas: none of the 5 questions was answered")
        if request.step == 4:
            raise JudgeOutage("the judge did not answer for 600 s")
        return found

    said: list[str] = []
    with pytest.raises(
        FollowingFailed, match=r"steps without all figures: 2, 4, .* 4: the judge did not answer"
    ):
        follow(run.request, said.append, evaluated=refusing, wait=run.wait)
    assert run.asked == [2, 4, 6]
    assert [line for line in said if "failed" in line] == [
        "step 2 failed: capmas: none of the 5 questions was answered",
        "step 4 failed: the judge did not answer for 600 s",
    ]
    found = evaluations_of(run.folder)["capmas"]
    # What could not be measured stands there as that; what was never judged is not there, and is taken up again.
    assert [(r.step, math.isnan(r.metrics["clair"].value)) for r in found] == [(2, True), (6, False)]
    assert run.follow() == []
    assert [r.step for r in evaluations_of(run.folder)["capmas"]] == [2, 4, 6]


def test_a_judge_that_was_never_there_ends_it_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.save(2, 4)

    def absent(request: EvaluationRequest, say: Say) -> dict[str, Path]:
        raise JudgeUnavailable("is not ready after 600 s")

    with pytest.raises(JudgeUnavailable, match="is not ready"):
        follow(run.request, print, evaluated=absent, wait=run.wait)


def killed(run: Run, folder: Path, *, seconds_ago: float) -> Run:
    """The run as a process that was killed so long ago left it: nobody holds its lock."""
    shutil.copytree(run.folder.root, folder)
    dead = replace_folder(run, folder)
    for path in folder.iterdir():
        then = time.time() - seconds_ago
        os.utime(path, (then, then))
    return dead


def replace_folder(run: Run, folder: Path) -> Run:
    other = copy.copy(run)
    other.folder = RunFolder(folder)
    other.request = replace(run.request, by=str(folder))
    return other


def test_a_run_whose_process_is_gone_is_not_waited_for_without_end(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.save(2, 4)
    dead = killed(run, tmp_path / "dead", seconds_ago=3 * GONE_AFTER_S)
    with pytest.raises(
        FollowingFailed, match=r"process of .*dead is gone .* 30 minutes.* of 2 checkpoints.*--resume"
    ):
        dead.follow()
    assert dead.asked == [2, 4]


def test_a_run_whose_process_is_gone_may_be_resumed_meanwhile(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.save(2)
    dead = killed(run, tmp_path / "dead", seconds_ago=1)
    said: list[str] = []
    waits = 0
    with ExitStack() as stack:

        def wait(seconds: float) -> None:
            nonlocal waits
            waits += 1
            if waits == 3:
                assert alone(stack.enter_context((dead.folder.root / ".lock").open("ab")))
            elif waits == 5:
                long_ago = time.time() - 3 * GONE_AFTER_S  # a step takes long
                os.utime(dead.folder.config, (long_ago, long_ago))
                os.utime(dead.folder.checkpoints, (long_ago, long_ago))
            elif waits == 8:
                dead.folder.summary.write_text("{}")

        assert follow(dead.request, said.append, evaluated=dead.evaluated, wait=wait) == [2]
    assert waits == 8
    assert len([line for line in said if "no process is at work in" in line]) == 1


def test_a_second_follower_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.save(2)
    run.folder.summary.write_text("{}")

    def again(request: EvaluationRequest, say: Say) -> dict[str, Path]:
        with pytest.raises(EvaluatorError, match=r"another process .* is at work in .*followed: wait"):
            run.follow()
        return run.evaluated(request, say)

    assert follow(run.request, print, evaluated=again, wait=run.wait) == [2]


def test_a_signal_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "run")
    run.save(2)
    monkeypatch.setattr(module, "requested", lambda: True)
    with pytest.raises(Stopped, match="after 0 checkpoints"):
        run.follow()
