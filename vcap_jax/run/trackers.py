"""The trackers of a run: what the run folder has is what they get, once, also when the run is resumed.

``RUN/trackers.json`` keeps of each its id and what it has been given. When training goes on, what the folder has and a
tracker lacks is given first: steps that a kill kept from it, or all of them to a tracker that was added later.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from vcap_jax.configuration import plain_settings
from vcap_jax.parallel.processes import Processes
from vcap_jax.report.evaluations import Results, evaluations_of
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.samples import Sample, SampleRow, SampleRows
from vcap_jax.report.trackers.config import TrackerName, TrackersConfig, check_trackers
from vcap_jax.report.trackers.contents import described, evaluation_values, strip, tracked
from vcap_jax.report.trackers.dashboards import (
    TensorBoardTracker,
    TrackedRun,
    Tracker,
    TrackioTracker,
    WandbTracker,
)
from vcap_jax.run.config import RunConfig
from vcap_jax.system.digests import digest_of
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record
from vcap_jax.system.waiting import Waiting, told_beside

_FILE = "trackers.json"
_SLOW_S = 60.0
"""A tracker that takes longer holds the run up, which is told."""
_KINDS: Mapping[TrackerName, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
}


@dataclass
class _Given:
    """What a tracker has: id of the run there, the last step, and evaluations by "NAME/WHEN" with their steps and
    digests of their values."""

    id: str
    step: int = 0
    evaluations: dict[str, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def stale(self, results: Results) -> bool:
        """Whether it has an evaluation whose values were others."""
        digest = _digest(results)
        return _key(results) in self.evaluations and self.values.get(_key(results), digest) != digest


class Trackers:
    """Gives what a run logs to the configured trackers. One that fails is told once and left alone from then on; the
    run goes on, and its folder has everything.

    groups: of a step. Use it in the first process alone. Raises ConfigError for a package that is not installed.
    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, say: Callable[[str], None], *, groups: int
    ) -> None:
        check_trackers(config.trackers)
        self._config, self._folder, self._say, self._groups = config, folder, say, groups
        self._working = list(config.trackers.use)
        self._open: dict[TrackerName, Tracker] = {}
        path = folder.root / _FILE
        self._given = read_record(dict[TrackerName, _Given], path) if path.exists() else {}

    def begin(self, done: int) -> None:
        """Training goes on after ``done`` steps: steps after it will come again."""
        for name in list(self._working):
            self._guarded(name, partial(self._catch_up, name, done))
        self._keep()

    def step(self, step: int, row: Mapping[str, object], samples: Sequence[Sample] = ()) -> None:
        """A step has ended. row: of metrics.jsonl; samples: those that the run shows of it."""
        self._each(lambda name: self._row(name, step, row, samples))

    def evaluated(self, results: Results) -> None:
        """An evaluation was made, or found in the folder."""
        self._each(lambda name: self._results(name, results))

    def close(self) -> None:
        """Ends all, which first get what a follower has measured meanwhile; waits for what they still send."""
        begun = list(self._open)
        for name in begun:
            self._guarded(name, partial(self._catch_up, name, self._of(name).step))
            if name in self._working:
                self._guarded(name, partial(self._close, name))
            else:  # it has failed, which was told
                with suppress(Exception), self._waited_for(name):
                    self._close(name)
        if begun:
            self._keep()

    def _row(
        self, name: TrackerName, step: int, row: Mapping[str, object], samples: Iterable[Sample]
    ) -> None:
        given = self._of(name)
        if step <= given.step:
            return
        tracker = self._opened(name)
        tracker.scalars(step, tracked(row, groups=self._groups))
        for place, sample in enumerate(samples, 1):
            tracker.picture(step, f"samples/{place}", strip(sample), described(sample))
        tracker.flush()
        given.step = step
        self._keep()  # now, and not when the others have it too: a kill meanwhile must not give it twice

    def _catch_up(self, name: TrackerName, done: int) -> None:
        """Gives what the folder has of the first ``done`` steps and the tracker lacks, whoever made it. One that
        rewinds drops what is of later steps, and goes back to before an evaluation that was made anew."""
        given, everything = self._of(name), evaluations_of(self._folder).values()
        evaluations = [one for several in everything for one in several if (one.step or 0) <= done]
        stale = [one for one in evaluations if given.stale(one)]
        if _KINDS[name].rewinds and (stale or given.step > done):
            given.step = min(done, given.step, *((one.step or 0) - 1 for one in stale))
            given.evaluations = {key: step for key, step in given.evaluations.items() if step <= given.step}
            self._close(name)
        elif stale:
            given.values |= {_key(one): _digest(one) for one in stale}
            self._say(
                f"the tracker {name} can replace nothing, and keeps what {', '.join(map(_key, stale))} came to before: "
                "the run folder has what it comes to now"
            )
        rows = {step: row for row in read_metrics(self._folder.metrics) if (step := int(row["step"])) <= done}
        shown: dict[int, list[SampleRow]] = {}
        if max(rows, default=0) > given.step:
            for sample in SampleRows(self._folder.samples).update():
                shown.setdefault(sample.step, []).append(sample)
        for step, row in rows.items():
            self._row(name, step, row, (sample.read() for sample in shown.get(step, ())))
        for one in evaluations:
            self._results(name, one)

    def _results(self, name: TrackerName, results: Results) -> None:
        given, key = self._of(name), _key(results)
        if key in given.evaluations:
            return
        tracker = self._opened(name)
        tracker.scalars(results.step or 0, evaluation_values(results))
        tracker.flush()
        given.evaluations[key], given.values[key] = results.step or 0, _digest(results)
        self._keep()

    def _opened(self, name: TrackerName) -> Tracker:
        if name not in self._open:
            given = self._of(name)
            self._keep()  # its id, before anything is there under it
            run = TrackedRun(
                name=self._folder.root.resolve().name,
                id=given.id,
                project=self._config.trackers.project,
                group=self._config.trackers.group,
                folder=self._folder.root,
                config=plain_settings(self._config),
                steps=given.step,
            )
            self._open[name] = _KINDS[name](run)
        return self._open[name]

    def _close(self, name: TrackerName) -> None:
        if (tracker := self._open.pop(name, None)) is not None:
            tracker.close()

    def _guarded(self, name: TrackerName, work: Callable[[], None]) -> None:
        if name not in self._working:
            return
        try:
            with self._waited_for(name):
                work()
        except Exception as error:  # whatever it is, a dashboard must not end a run
            self._working.remove(name)
            self._say(
                f"the tracker {name} has failed and is given nothing more: {type(error).__name__}: {error}. The run "
                "goes on; what it lacks it gets with --resume"
            )

    def _each(self, work: Callable[[TrackerName], None]) -> None:
        for name in list(self._working):
            self._guarded(name, partial(work, name))

    def _waited_for(self, name: TrackerName) -> AbstractContextManager[None]:
        """Has it told for whom the run waits, if it is for long."""
        return told_beside(Waiting(f"the tracker {name}", self._say, first_s=_SLOW_S), "the run stands still")

    def _of(self, name: TrackerName) -> _Given:
        return self._given.setdefault(name, _Given(id=secrets.token_hex(4)))

    def _keep(self) -> None:
        if self._config.trackers.use:
            rows = {name: asdict(given) for name, given in self._given.items()}
            write_json(self._folder.root / _FILE, rows)


def _key(results: Results) -> str:
    return f"{results.evaluator}/{results.when}"


def _digest(results: Results) -> str:
    return digest_of(json.dumps(evaluation_values(results), sort_keys=True))


@contextmanager
def run_trackers(
    config: RunConfig, folder: RunFolder, say: Callable[[str], None], processes: Processes, groups: int
) -> Iterator[Trackers]:
    """The configured trackers in the first process, none in the others. All must enter the context together; raises
    ConfigError for a package that is not installed."""
    mine = config if processes.first else replace(config, trackers=TrackersConfig())
    trackers = processes.together("trackers", lambda: Trackers(mine, folder, say, groups=groups))
    try:
        yield trackers
    finally:
        trackers.close()
