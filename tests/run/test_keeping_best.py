"""Which checkpoint is the best so far, and that a resumed run goes on with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.evals.config import EvaluationConfig
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.report.best_checkpoint import read_best
from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import LoggingConfig, RunConfig
from vcap_jax.run.inputs import check_inputs
from vcap_jax.run.keeping_best import BestKeeper, best_row, kept_steps
from vcap_jax.system.files import write_json
from vcap_jax.system.json_values import JsonError


def results(step: int, value: float, n: int = 9, **more: Any) -> dict[str, Results]:
    measured = Value(value=value, low=value - 0.1, high=value + 0.1, n=n, method="m")
    return {
        "judged": Results(
            evaluator="judged",
            when=f"step-{step}",
            step=step,
            metrics={"reward": measured},
            items=9,
            failed=0,
            **more,
        )
    }


def keeper(folder: Path, processes: Processes = ALONE, **logging: Any) -> BestKeeper:
    config = LoggingConfig(**{"keep_best": "judged/reward", **logging})
    return BestKeeper(config, RunFolder(folder), processes, ["judged"])


def go_through(folder: Path, values: dict[int, float], **logging: Any) -> list[int]:
    """The steps that were the best so far, each noted once its checkpoint is complete."""
    found = []
    for step, value in values.items():
        keeping = keeper(folder, **logging).better(step, results(step, value), print)  # each in a new start
        if keeping is not None:
            keeping()
            found.append(step)
            assert kept_steps(RunFolder(folder)) == (step,)
    return found


def test_the_best_so_far_is_noted_and_equal_ones_change_nothing(tmp_path: Path) -> None:
    values = {0: 0.9, 2: 0.3, 4: 0.5, 6: 0.5, 8: math.nan, 10: 0.4, 12: 0.6}
    assert go_through(tmp_path, values) == [2, 4, 12]
    best = read_best(RunFolder(tmp_path))
    assert best is not None
    assert (best.step, best.value, best.low) == (12, 0.6, 0.5)
    # Done again after a kill: it is still the best, and its checkpoint is asked for again.
    assert go_through(tmp_path, {12: 0.6}) == [12]


def test_an_evaluation_of_clearly_fewer_samples_than_the_best_is_not_compared(tmp_path: Path) -> None:
    said: list[str] = []

    def is_best(step: int, value: float, n: int) -> bool:
        keeping = best.better(step, results(step, value, n), said.append)
        if keeping is not None:
            keeping()
        return keeping is not None

    best = keeper(tmp_path)
    assert is_best(20, 0.703, 200)
    said.clear()
    assert not is_best(40, 0.71, 1)
    assert not is_best(40, 0.71, 1)  # as after the last step: when it is done, and at the end
    assert said == ["step 40 is not compared: judged/reward is of 1 of 200 samples"]
    assert not is_best(60, 0.72, 179)
    assert is_best(80, 0.71, 180)
    assert not is_best(100, 0.7, 200)
    noted = json.loads((tmp_path / "best.json").read_text())
    assert noted.pop("n") == 180
    write_json(tmp_path / "best.json", noted)
    with pytest.raises(JsonError, match=r"best\.json: n: field required"):
        is_best(120, 0.72, 200)


def test_an_evaluation_of_clearly_fewer_samples_than_the_start_is_not_compared(tmp_path: Path) -> None:
    """Nor when a metric comes later, and what was evaluated before is looked through."""
    folder, said = RunFolder(tmp_path), list[str]()
    for step, value, n in ((0, 0.1, 200), (2, 0.9, 100), (4, 0.3, 190)):
        results(step, value, n)["judged"].write(folder.evaluation("judged") / f"{step}.json")
        (folder.checkpoints / str(step)).mkdir(parents=True)
    assert keeper(tmp_path).better(6, results(6, 0.8, 20), said.append) is None
    assert said == ["step 6 is not compared: judged/reward is of 20 of 200 samples"]
    best = read_best(folder)
    assert best is not None
    assert (best.step, best.value, best.n) == (4, 0.3, 190)


def test_samples_are_compared_though_several_show_one_picture(tmp_path: Path) -> None:
    """An earlier version had each row for a picture of its own, in a run that is resumed."""
    folder, said = RunFolder(tmp_path), list[str]()
    results(0, 0.1, 200)["judged"].write(folder.evaluation("judged") / "start.json")
    assert go_through(tmp_path, {2: 0.3}) == []  # of 9
    best = keeper(tmp_path)
    assert best.better(4, results(4, 0.5, 40, measured={"reward": 190}), said.append) is not None
    assert best.better(6, results(6, 0.6, 40, measured={"reward": 60}), said.append) is None
    assert said == ["step 6 is not compared: judged/reward is of 60 of 200 samples"]


def test_an_evaluation_of_no_sample_ends_no_run(tmp_path: Path) -> None:
    """A judge that could score nothing gives no reward at all."""
    said: list[str] = []
    results(0, 0.1, 200)["judged"].write(RunFolder(tmp_path).evaluation("judged") / "start.json")
    failed = results(20, 0.0)["judged"]
    failed = replace(failed, metrics={"judge_failed": failed.metrics["reward"]})
    assert keeper(tmp_path).better(20, {"judged": failed}, said.append) is None
    assert said == ["step 20 is not compared: judged/reward is of none of 200 samples"]


def test_the_lowest_may_be_the_best_and_another_metric_begins_anew(tmp_path: Path) -> None:
    assert go_through(tmp_path, {2: 0.3, 4: 0.5, 6: 0.1}, best_is="lowest") == [2, 6]
    assert go_through(tmp_path, {8: 0.2}) == [8]
    # The highest was kept: of the lowest there is none yet.
    assert go_through(tmp_path, {10: 0.7}, best_is="lowest") == [10]


def test_a_metric_that_comes_later_finds_what_was_evaluated_before(tmp_path: Path) -> None:
    """Where the checkpoint is still there; a resumed run may choose another metric, or the first one."""
    folder = RunFolder(tmp_path)
    for step, value in {0: 0.05, 2: 0.1, 4: 0.3, 6: 0.2}.items():
        one = results(step, value)["judged"]
        one.write(tmp_path / "evaluations" / "judged" / f"{one.when}.json")
        if step in (4, 6):
            (folder.checkpoints / str(step)).mkdir(parents=True)
    assert go_through(tmp_path, {8: 0.4}, best_is="lowest") == []
    best = read_best(folder)
    assert best is not None
    assert (best.step, best.value) == (6, 0.2)
    assert go_through(tmp_path, {10: 0.15}, best_is="lowest") == [10]


def test_it_is_named_in_the_summary_and_a_start_that_was_better_is_told(tmp_path: Path) -> None:
    folder, said = RunFolder(tmp_path), list[str]()
    assert best_row(folder, said.append) == {}
    for step, value in ((0, 0.9), (4, 0.5)):
        results(step, value)["judged"].write(folder.evaluation("judged") / f"{step}.json")
    go_through(tmp_path, {4: 0.5})
    row: Any = best_row(folder, said.append)["best"]
    assert (row["step"], row["start"], row["checkpoint"]) == (4, 0.9, "checkpoints/4")
    assert said[0].endswith(f"--by {tmp_path} --step best names it")
    assert said[1] == "warning: by judged/reward no step was better than the start"


def test_a_metric_without_an_interval_can_be_kept_by(tmp_path: Path) -> None:
    """An evaluator of one's own may give a value and no interval, which JSON holds as null."""
    folder, found = RunFolder(tmp_path), results(2, 0.5)
    bare = Value(value=0.5, low=math.nan, high=math.nan, n=1, method="none")
    found["judged"] = replace(found["judged"], metrics={"reward": bare})
    keeping = keeper(tmp_path).better(2, found, print)
    assert keeping is not None
    keeping()
    best = read_best(folder)
    assert best is not None
    assert (best.step, best.value, math.isnan(best.low)) == (2, 0.5, True)
    row: Any = best_row(folder, print)["best"]
    write_json(tmp_path / "summary.json", row)
    assert (row["value"], row["low"], row["high"]) == (0.5, None, None)


def test_all_processes_decide_alike(tmp_path: Path) -> None:
    def decide(processes: Processes) -> bool:
        keeping = keeper(tmp_path, processes).better(2, results(2, 0.5), lambda text: None)
        if keeping is not None:
            keeping()
        return keeping is not None

    assert in_threads(3, decide) == [True] * 3


def test_what_cannot_be_kept_is_told_before_work(tmp_path: Path) -> None:
    with pytest.raises(EvaluatorError, match=r"logging.keep_best is judged/none, and judged gives reward"):
        keeper(tmp_path, keep_best="judged/none").better(2, results(2, 0.5), print)
    with pytest.raises(ConfigError, match="facts evaluates nothing here, only: judged"):
        keeper(tmp_path, keep_best="facts/coverage")
    for settings, message in (
        (["logging.keep_best=reward", "evaluation.every=2"], "give EVALUATOR/METRIC"),
        (["logging.keep_best=judged/reward"], "evaluation.every is null: set it"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(RunConfig, [], settings)
    wrong = RunConfig(logging=LoggingConfig(keep_best="facts/coverage"), evaluation=EvaluationConfig(every=2))
    with pytest.raises(ConfigError, match=r"evaluation.evaluators has heldout, judged"):
        check_inputs(wrong, policy=False)


@pytest.mark.parametrize(
    ("best", "data", "there"),
    [
        ("judged/reward", {}, "heldout"),
        ("heldout/coverage", {"manifest": "{folder}"}, "none"),
        ("heldout/coverage", {"manifest": "{folder}", "heldout_share": 0.5}, "judged"),
        ("judged/reward", {"manifest": "{folder}", "heldout_share": 0.5}, None),
        ("heldout/coverage", {}, None),
    ],
)
def test_an_evaluator_that_has_nothing_here_is_told_before_references_are_written(
    tmp_path: Path, best: str, data: dict[str, Any], there: str | None
) -> None:
    for name in "abcdefgh":
        (tmp_path / f"{name}.png").touch()
    given = {key: str(tmp_path) if key == "manifest" else value for key, value in data.items()}
    config = load_config(
        RunConfig,
        [],
        [f"logging.keep_best={best}", "evaluation.every=1", "max_steps=1"]
        + [f"data.{key}={value}" for key, value in given.items()],
    )
    if there is None:
        check_inputs(config, policy=False)
        return
    name = best.partition("/")[0]
    with pytest.raises(ConfigError, match=f"{name} evaluates nothing here, only: {there} "):
        check_inputs(config, policy=False)
