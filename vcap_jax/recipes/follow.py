"""Evaluates the checkpoints of a run while it goes on, on devices of its own: the run neither waits nor knows.

RUN/followed/step-K/NAME/...      what ``vcap_jax.recipes.evaluate`` leaves of each checkpoint
RUN/evaluations/NAME/step-K.json  its figures, where the run's own evaluations are: for the plots and the summary
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vcap_jax.configuration import load_config
from vcap_jax.evals.benchmarks.results import RESULTS
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.recipes.evaluate import evaluate
from vcap_jax.recipes.evaluation_request import EvaluationRequest, Say
from vcap_jax.report.evaluations import Results
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import read_json_object
from vcap_jax.system.shutdown import Stopped, requested
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError

LOOK_EVERY_S = 2.0
"""Between two looks at the run's checkpoints."""


def follow(
    request: EvaluationRequest,
    say: Say,
    *,
    evaluated: Callable[[EvaluationRequest, Say], dict[str, Path]] = evaluate,
    wait: Callable[[float], None] = time.sleep,
) -> list[int]:
    """Evaluates every checkpoint of the run ``request.by`` as it comes, the oldest first, until the run has ended and
    none is left; the steps that figures were made of.

    An earlier follower's steps are gone through once, those too whose checkpoint is gone since: what is there and is
    what is asked for is not done again, and another judge scores the captions of all of them. A checkpoint that the
    run removes before its turn has come is left out, which is said. ``request.step`` and
    ``request.out`` are this function's. evaluated: does one. wait: sleeps so many seconds.
    Raises EvaluatorError unless ``request.by`` is a run, and for a benchmark that the run itself evaluates by; what
    ``evaluate`` raises; Stopped if a signal has come.
    """
    run = RunFolder(Path(request.by))
    if not run.config.exists():
        raise EvaluatorError(
            f"--follow: {request.by} is no run: give --by the folder of one that is going on"
        )
    own = {entry.name or entry.use for entry in load_config(RunConfig, [run.config]).evaluation.evaluators}
    if both := sorted(own & set(request.benchmarks)):
        raise EvaluatorError(f"--follow: the run itself evaluates by {', '.join(both)}: leave them out")
    done: list[int] = []
    seen: set[int] = set()
    say(f"following {run.root}: {', '.join(request.benchmarks)}")
    while True:
        ended = run.summary.exists()  # before the look: no checkpoint comes after it
        left = sorted({*_steps(run), *_followed(run, request.benchmarks)} - seen)
        if requested():
            raise Stopped(f"stopped following {run.root} after {len(done)} checkpoints")
        if left:
            step = left[0]
            seen.add(step)
            one = replace(request, step=step, out=_folder(run) / f"step-{step}")
            before = _figures(one)
            try:
                folders = evaluated(one, say)
            except CheckpointError as error:
                if step in _steps(run):
                    raise
                say(f"step {step} is left out: {error}")
                continue
            for name, folder in folders.items():
                _results(name, step, folder / RESULTS).write(_file(run, name, step))
            if _figures(one) != before:
                done.append(step)
        elif ended:
            return done
        else:
            wait(LOOK_EVERY_S)


def _steps(run: RunFolder) -> list[int]:
    """With a complete checkpoint, ascending."""
    if not run.checkpoints.is_dir():
        return []
    with Checkpointer(run.checkpoints, read_only=True) as checkpoints:
        return checkpoints.steps()


def _folder(run: RunFolder) -> Path:
    return run.root / "followed"


def _followed(run: RunFolder, benchmarks: tuple[str, ...]) -> set[int]:
    """Steps that were evaluated before, whatever has become of their checkpoints."""
    found = {
        path.parents[1].name for name in benchmarks for path in _folder(run).glob(f"step-*/{name}/{RESULTS}")
    }
    return {int(number) for name in found if (number := name.removeprefix("step-")).isdigit()}


def _figures(request: EvaluationRequest) -> list[bytes | None]:
    """What the evaluations of a step came to; None where there is nothing yet."""
    paths = [request.out / name / RESULTS for name in request.benchmarks]
    return [path.read_bytes() if path.exists() else None for path in paths]


def _file(run: RunFolder, name: str, step: int) -> Path:
    return run.evaluation(name) / f"step-{step}.json"


def _results(name: str, step: int, path: Path) -> Results:
    """Of a benchmark's results.json."""
    about = {"evaluator": name, "when": f"step-{step}", "step": step}
    return as_record(Results, read_json_object(path) | about, str(path))
