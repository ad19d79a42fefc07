"""What a run leaves behind of its steps: the row of metrics, alarms, the progress line, samples and plots.

Of several processes the first one keeps the log; the others are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import SupportsFloat

import numpy as np

from vcap_jax.grpo.advantages import overlong_penalty
from vcap_jax.grpo.records import StepReport
from vcap_jax.grpo.step_metrics import judge_metrics, reward_metrics
from vcap_jax.report.metrics import MetricsWriter, Row, Scalar, read_metrics
from vcap_jax.report.progress import SHOWN, Progress, Shown
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.world_facts import fact_metrics
from vcap_jax.reward.alarms import AlarmWatch
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.run.config import RunConfig
from vcap_jax.run.observers import RunObserver
from vcap_jax.run.trackers import Trackers
from vcap_jax.system.json_values import as_whole
from vcap_jax.world.splits import EmbeddedData


class MetricsLog:
    """Metrics and the progress line, whatever is trained; close it at the end.

    total, done: steps of the whole run, and those of earlier starts. Rows after ``done`` are dropped, because these
    steps are done again and come out the same. shown: on the progress line. trackers: get what is logged.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        total: int,
        done: int,
        trackers: Trackers,
        shown: Sequence[Shown] = SHOWN,
    ) -> None:
        self._trackers = trackers
        self._metrics = MetricsWriter(folder.metrics)
        self._progress = Progress(total, start=done, every=config.logging.print_every, shown=shown)
        if lacking := self._metrics.go_on_after(done):
            self.message(lacking)
        trackers.begin(done)

    def message(self, text: str) -> None:
        self._progress.message(text)

    def evaluated(self, step: int, columns: Mapping[str, float]) -> None:
        """Adds an evaluation's columns to the row of ``step``, the last one, unless that was lost, which was told."""
        if self._metrics.last_step == step:
            self._metrics.complete(step, columns)

    def close(self) -> None:
        """Ends the progress line."""
        self._progress.close()
        self._metrics.close()


class SupervisedLog(MetricsLog):
    """Implements ``sft.trainer.Log`` in the run's folder."""

    def step(self, row: Mapping[str, Scalar]) -> None:
        self._metrics.write(row)
        step = as_whole(row["step"], "step")
        self._trackers.step(step, row)
        self._progress.update(step, row)


class RunLog(MetricsLog):
    """Implements ``grpo.trainer.Log`` in the run's folder.

    learning_rate: update (from 0) -> rate. world: if given, facts that captions cover and make up are counted.
    second_judge: whose agreement is logged. Each of several processes has its own; the log shows that of process 0.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        total: int,
        done: int,
        learning_rate: Callable[[int], SupportsFloat],
        world: EmbeddedData | None,
        second_judge: SecondJudge | None,
        trackers: Trackers,
    ) -> None:
        super().__init__(config, folder, total=total, done=done, trackers=trackers)
        self._config, self._world, self._second_judge = config, world, second_judge
        self._learning_rate = learning_rate
        self._observer = RunObserver(config, folder, world, done=done, total=total, say=self.message)
        self._alarms = AlarmWatch(config.alarms, read_metrics(folder.metrics))

    def step(self, report: StepReport) -> None:
        """Writes the row, then whatever shows it."""
        results, outcome = report.outcome.results, report.outcome
        row: Row = {"step": report.step}
        row |= reward_metrics(results, report.advantages)
        overlong = self._config.grpo.overlong
        if overlong.weight:
            lengths = np.stack([result.lengths for result in results])
            longest = self._config.rollout.max_completion_length
            row["reward/overlong"] = float(overlong_penalty(lengths, longest, overlong).mean())
        if self._world is not None:
            groups = [(result.sample_id, result.captions) for result in results]
            row |= fact_metrics(self._world.train_scenes, groups)
        alarms, warnings = self._alarms.step(
            report.step,
            [result.scores for result in results],
            [result.captions for result in results],
            [bool(flat) for flat in report.advantages.flat[~report.advantages.skipped]],
            {**row, **report.update},
        )
        row |= alarms
        if self._second_judge is not None:
            row |= self._second_judge.metrics()
        last = report.step * self._config.grpo.num_iterations - 1  # whose numbers report.update has
        row |= {**report.update, "lr": float(self._learning_rate(last))}
        row |= judge_metrics(report.judge)
        row["data/skipped"] = report.skipped_samples
        tokens = sum(int(result.lengths.sum()) for result in results)
        row |= {
            "seconds/data": report.data_seconds,
            "seconds/rollout": outcome.rollout_seconds,
            "seconds/judge": outcome.judge_seconds,
            "seconds/update": report.update_seconds,
            "seconds/step": report.step_seconds,
            "tokens_per_s/rollout": tokens / outcome.rollout_seconds,
            "tokens_per_s/update": tokens / report.update_seconds,
            "compiles": report.compiles,
        }
        self._metrics.write(row)
        self._trackers.step(report.step, row, self._observer(report))
        for warning in warnings:
            self._progress.message(f"step {report.step}: {warning}")
        self._progress.update(report.step, row)

    def close(self) -> None:
        """Ends the progress line, draws page and plots a last time."""
        super().close()
        self._observer.close()


class SilentLog:
    """The log of a process that is not the first."""

    def message(self, text: str) -> None:
        del text

    def step(self, report: object) -> None:
        del report

    def evaluated(self, step: int, columns: Mapping[str, float]) -> None:
        del step, columns

    def close(self) -> None:
        pass
