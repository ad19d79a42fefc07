"""Evaluates the checkpoints of a run while it goes on, on devices of its own: the run neither waits nor knows.

RUN/followed/step-K/NAME/...      what ``vcap_jax.recipes.evaluate`` leaves of each checkpoint
RUN/evaluations/NAME/step-K.json  its figures, where the run's own evaluations are: for the plots and the summary
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from vcap_jax.configuration import load_config
from vcap_jax.evals.benchmarks.results import RESULTS, asked
from vcap_jax.evals.protocol import EvaluationFailed, EvaluatorError
from vcap_jax.recipes.evaluate import NothingMeasured, evaluate
from vcap_jax.recipes.evaluation_request import CAPTIONS, EvaluationRequest, Say
from vcap_jax.report.evaluations import Results
from vcap_jax.report.idle_run import deserted
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.run.checkpoint_source import runs_in
from vcap_jax.run.config import RunConfig
from vcap_jax.system.file_locks import only_one
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import read_json_object
from vcap_jax.system.shutdown import Stopped, requested
from vcap_jax.training.checkpoint import Checkpointer, CheckpointError, CheckpointGone

LOOK_EVERY_S = 2.0
"""Between two looks at the run's checkpoints."""
GONE_AFTER_S = 600.0
"""So long a run whose process is gone is waited for, since it last wrote anything: it may be resumed."""


class FollowingFailed(EvaluationFailed):
    """What was followed is at its end, and not every step has its figures."""


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
    run removes before its turn has come, or while it is read, is left out, which is said. A step that the judge gives
    no figures of is told, and the next one's turn comes. ``request.step`` and ``request.out`` are this function's.
    evaluated: does one. wait: sleeps so many seconds.
    Raises EvaluatorError unless ``request.by`` is a single run, for a benchmark that the run itself evaluates by, and
    where another process follows the run; FollowingFailed at the end, where steps failed, no step has figures, or the
    run's process is gone; what ``evaluate`` raises, of a judge that cannot be asked only where none was ever asked;
    Stopped if a signal has come.
    """
    run = RunFolder(Path(request.by))
    if not run.config.exists():
        raise EvaluatorError(
            f"--follow: {request.by} is no run: give --by the folder of one that is going on"
        )
    own = {entry.name or entry.use for entry in load_config(RunConfig, [run.config]).evaluation.evaluators}
    if both := sorted(own & set(request.benchmarks)):
        raise EvaluatorError(f"--follow: the run itself evaluates by {', '.join(both)}: leave them out")
    _refuse_several(run)
    say(f"following {run.root}: {', '.join(request.benchmarks)}")
    with only_one(_folder(run), EvaluatorError, "end it"):
        return _Following(run, request, say, evaluated).to_its_end(wait)


class _Following:
    """done: the steps that figures were made of. failed: those that failed, with the reason."""

    def __init__(
        self,
        run: RunFolder,
        request: EvaluationRequest,
        say: Say,
        evaluated: Callable[[EvaluationRequest, Say], dict[str, Path]],
    ) -> None:
        self._run, self._request, self._say, self._evaluated = run, request, say, evaluated
        self._seen: set[int] = set()
        self._through = self._told_gone = False
        self.done: list[int] = []
        self.failed: dict[int, str] = {}

    def to_its_end(self, wait: Callable[[float], None]) -> list[int]:
        """See ``follow``."""
        run = self._run
        while True:
            ended = run.summary.exists()  # before the look: no checkpoint comes after it
            gone = None if ended else _gone_for_s(run)
            left = sorted({*_steps(run), *_followed(run, self._request.benchmarks)} - self._seen)
            if requested():
                raise Stopped(f"stopped following {run.root} after {len(self.done)} checkpoints")
            if left:
                self._seen.add(left[0])
                self._step(left[0])
            elif ended and not self.failed:
                self._say(f"{run.root} has ended: {self._with_figures()}")
                return self.done
            elif ended or (gone is not None and gone >= GONE_AFTER_S):
                raise FollowingFailed("; ".join(self._lacking(gone)))
            else:
                _refuse_several(run)  # its parts may have come since
                self._tell(gone)
                wait(LOOK_EVERY_S)

    def _step(self, step: int) -> None:
        run, one = self._run, replace(self._request, step=step, out=_folder(self._run) / f"step-{step}")
        before = _figures(one)
        try:
            self._evaluated(one, self._say)
        except CheckpointError as error:
            # One that is being removed may still be counted: its folder goes last.
            if not isinstance(error, CheckpointGone) and step in _steps(run):
                raise
            self._say(f"step {step} is left out: {error}")
            return
        except NothingMeasured as error:  # what was measured beside it counts
            self._failed(step, error)
        except JudgeUnavailable as error:
            if not self._through:  # it was never there: more likely a mistake of the command's than an outage
                raise
            self._failed(step, error)
            return
        self._through = True
        for name in one.benchmarks:
            path = one.out / name / RESULTS
            row = read_json_object(path)
            about = {"evaluator": name, "when": f"step-{step}", "step": step, "asked": asked(row)}
            found = as_record(Results, row | about, str(path))
            found.write(run.evaluation(name) / f"step-{step}.json")
        if _figures(one) != before:
            self.done.append(step)

    def _failed(self, step: int, error: Exception) -> None:
        self.failed[step] = str(error)
        self._say(f"step {step} failed: {error}")

    def _tell(self, gone: float | None) -> None:
        if gone is not None and not self._told_gone:
            self._say(
                f"no process is at work in {self._run.root}, and the run has not ended: it is waited for, until it has "
                f"written nothing for {GONE_AFTER_S / 60:g} minutes"
            )
        self._told_gone = gone is not None

    def _with_figures(self) -> str:
        """How many steps have figures, from earlier followers too. Raises FollowingFailed where none has."""
        run, names = self._run, self._request.benchmarks
        found = [{path.stem for path in run.evaluation(name).glob("step-*.json")} for name in names]
        number, of = len(set.intersection(*found)), ", ".join(names)
        if not number:
            raise FollowingFailed(
                f"{run.root} has ended, and no step has figures of {of}: the run kept no checkpoint until its turn "
                "came (logging.save_every, logging.keep)"
            )
        return f"{number} {'step has' if number == 1 else 'steps have'} figures of {of}"

    def _lacking(self, gone: float | None) -> Iterator[str]:
        if gone is not None:
            yield (
                f"the process of {self._run.root} is gone and has written nothing for {gone / 60:.0f} minutes, before "
                f"the run's end: figures were made of {len(self.done)} checkpoints. Go on with the run (--resume) and "
                "follow it again"
            )
        if self.failed:
            last = max(self.failed)
            yield (
                f"steps without all figures: {', '.join(map(str, self.failed))}, such as step {last}: "
                f"{self.failed[last]}"
            )


def _refuse_several(run: RunFolder) -> None:
    """Raises EvaluatorError for the folder of rounds, or of distillation, which has runs and no checkpoints."""
    if parts := runs_in(run.root):
        several = ", ".join(map(str, parts))
        raise EvaluatorError(f"--follow: {run.root} holds runs: give --by one of them: {several}")


def _gone_for_s(run: RunFolder) -> float | None:
    """Seconds since a run wrote anything whose process is gone; None for one that is at work, or may be."""
    if not deserted(run.root):
        return None
    # Not the folder itself, in which the follower writes. The summary may have come since it was looked for.
    files = (run.config, run.metrics, run.checkpoints, run.samples, run.summary)
    return max(0.0, time.time() - max(path.stat().st_mtime for path in files if path.exists()))


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
    # Captions without figures too: their judge was gone, and may be there again.
    found = {
        path.parents[1].name
        for name in benchmarks
        for left in (RESULTS, CAPTIONS)
        for path in _folder(run).glob(f"step-*/{name}/{left}")
    }
    return {int(number) for name in found if (number := name.removeprefix("step-")).isdigit()}


def _figures(request: EvaluationRequest) -> list[bytes | None]:
    """What the evaluations of a step came to; None where there is nothing yet."""
    paths = [request.out / name / RESULTS for name in request.benchmarks]
    return [path.read_bytes() if path.exists() else None for path in paths]
