"""Keeps the best checkpoint of a run by a metric of its evaluations (``logging.keep_best``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from vcap_jax.configuration import ConfigError
from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.parallel.processes import Processes
from vcap_jax.report.best_checkpoint import BEST, Best, read_best, write_best
from vcap_jax.report.evaluations import Results, evaluations_of
from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import LoggingConfig

_ENOUGH = 0.9
"""The share of the samples of the start, and of the best so far, that an evaluation must be over to be compared: the
few that a judge could score may be the easy ones."""


class BestKeeper:
    """Compares evaluations of the policy with the best one so far, which the run folder notes.

    evaluators: names of those that have something to evaluate. All processes must call ``better`` together.
    Raises ConfigError if the metric is of none of them.
    """

    def __init__(
        self, config: LoggingConfig, folder: RunFolder, processes: Processes, evaluators: Collection[str]
    ) -> None:
        self._config, self._folder, self._processes = config, folder, processes
        self._left_out = 0
        """The step that was last told not to be compared."""
        if config.keep_best is not None and (name := config.keep_best.partition("/")[0]) not in evaluators:
            there = ", ".join(evaluators) or "none"
            raise ConfigError(
                f"logging.keep_best is {config.keep_best}, and {name} evaluates nothing here, only: {there}"
            )

    def check(self, found: Mapping[str, Results]) -> None:
        """Raises EvaluatorError for a metric that the evaluator does not give. found: evaluations by evaluator."""
        if self._config.keep_best is None:
            return
        evaluator, _, metric = self._config.keep_best.partition("/")
        if metric not in (there := found[evaluator].metrics):
            raise EvaluatorError(
                f"logging.keep_best is {self._config.keep_best}, and {evaluator} gives "
                f"{', '.join(there) or 'no metric'}"
            )

    def better(
        self, step: int, found: Mapping[str, Results], say: Callable[[str], None]
    ) -> Callable[[], None] | None:
        """None unless the policy after ``step`` updates is the best so far; else what is to be done once its checkpoint
        is complete. found: its evaluations by evaluator. One over clearly fewer samples than before is not compared,
        which is told.

        Raises EvaluatorError for a metric that the evaluator does not give.
        """
        if self._config.keep_best is None:
            return None
        evaluator, _, metric = self._config.keep_best.partition("/")
        start, at_start = self._start(evaluator, metric)
        if start is not None and metric not in found[evaluator].metrics:
            say(f"step {step} is not compared: {self._config.keep_best} is of none of {at_start} samples")
            return None
        self.check(found)
        value = found[evaluator].metrics[metric]
        if step == 0 or math.isnan(value.value):
            return None
        now = Best(
            metric=self._config.keep_best,
            best_is=self._config.best_is,
            step=step,
            value=value.value,
            low=value.low,
            high=value.high,
            n=found[evaluator].samples(metric),
            start=None if start is None else start.value,
        )
        is_best = partial(self._is_best, now, at_start, say)
        if not self._processes.on_process_0(f"best checkpoint, step {step}", is_best):
            return None
        return partial(self._note, now, say)

    def _is_best(self, now: Best, of_start: int, say: Callable[[str], None]) -> bool:
        before = read_best(self._folder)
        if before is None or (before.metric, before.best_is) != (now.metric, now.best_is):
            before = self._best_before(now, of_start)
            if before is not None:
                write_best(self._folder, before)
        most = _most(of_start, before)
        if now.n < _ENOUGH * most:
            if self._left_out != now.step:  # the last one is asked about twice
                say(f"step {now.step} is not compared: {now.metric} is of {now.n} of {most} samples")
            self._left_out = now.step
            return False
        return before is None or before.step == now.step or now.beats(before)

    def _best_before(self, now: Best, of_start: int) -> Best | None:
        """By the metric that ``now`` is chosen by, of the evaluations before whose checkpoints are still there: a
        resumed run may have begun with another metric, or with none."""
        evaluator, _, metric = now.metric.partition("/")
        best = None
        for results in evaluations_of(self._folder).get(evaluator, ()):
            step, value = results.step, results.metrics.get(metric)
            if value is None or not step or step == now.step or math.isnan(value.value):
                continue
            n = results.samples(metric)
            found = replace(now, step=step, value=value.value, low=value.low, high=value.high, n=n)
            there = (self._folder.checkpoints / str(step)).is_dir()
            enough = found.n >= _ENOUGH * _most(of_start, best)
            if there and enough and (best is None or found.beats(best)):
                best = found
        return best

    def _start(self, evaluator: str, metric: str) -> tuple[Value | None, int]:
        """The metric at the start, and the number of samples that it is over; None and 0 where it is not known."""
        for results in evaluations_of(self._folder).get(evaluator, ()):
            if results.step == 0 and metric in results.metrics:
                value = results.metrics[metric]
                return (None, 0) if math.isnan(value.value) else (value, results.samples(metric))
        return None, 0

    def _note(self, now: Best, say: Callable[[str], None]) -> None:
        if self._processes.first and read_best(self._folder) != now:
            write_best(self._folder, now)
            say(f"best checkpoint so far: {now}; it is kept")


def _most(of_start: int, best: Best | None) -> int:
    return of_start if best is None else max(of_start, best.n)


def kept_steps(folder: RunFolder) -> tuple[int, ...]:
    """Steps of a run whose checkpoints stay, whatever their age."""
    best = read_best(folder)
    return () if best is None else (best.step,)


def best_row(folder: RunFolder, say: Callable[[str], None]) -> dict[str, object]:
    """For summary.json: the best checkpoint, where one is kept; says how it is used."""
    best = read_best(folder)
    if best is None:
        return {}
    say(f"best checkpoint: {best}; --by {folder.root} --step {BEST} names it")
    if best.start is not None and not best.beats(replace(best, value=best.start)):
        say(f"warning: by {best.metric} no step was better than the start")
    return {"best": {**best.row(), "checkpoint": f"{folder.checkpoints.name}/{best.step}"}}
