"""Runs side by side. Those that differ in nothing but the seed are one arm: its figures are means with their range."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from vcap_jax.report.evaluations import Results, evaluations_of
from vcap_jax.report.metrics import Row, read_metrics
from vcap_jax.report.run_folder import RunFolder, RunFolderError, flat_settings, within
from vcap_jax.system.digests import digest_of
from vcap_jax.system.json_values import JsonDict, JsonObject, JsonValue, as_object

REWARD = "reward/mean"
_CAPTIONS = ("data.references", "sft.captions")
"""Files that a recipe gives to its parts, of what others of its parts have written."""
_ABSENT = "absent"
_JUDGE = "judge.model"
_IDENTITY = ("name", "seed")
_ENDS = 10


def reward_ends(rows: Sequence[Row]) -> tuple[float, float] | None:
    """The mean reward over the first and the last tenth of the steps that have one; None where none has. Where a judge
    failed for a whole step its reward is not a number."""
    rewards = [value for row in rows if math.isfinite(value := float(row.get(REWARD, math.nan)))]
    share = max(1, len(rewards) // _ENDS)
    return (fmean(rewards[:share]), fmean(rewards[-share:])) if rewards else None


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """What a run's folder says of it. title: its name on pages. settings: by dotted key, without those that decide no
    result. rows: of metrics.jsonl. evaluations: of its policy, by evaluator, in order of steps. judge: the model that
    has judged, None where that is not known."""

    title: str
    folder: Path
    seed: JsonValue
    settings: JsonObject
    rows: Sequence[Row]
    evaluations: Mapping[str, Sequence[Results]]
    judge: str | None = None

    @property
    def steps(self) -> int:
        """Updates that it has done."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def figures(self) -> dict[str, tuple[float | None, float]]:
        """By name the value at the start, None where there is none of it, and now. Evaluations are EVALUATOR/METRIC;
        the reward is its mean over the first and the last tenth of the steps that have one. What was not measured since
        the start is left out."""
        found: dict[str, tuple[float | None, float]] = {}
        for name, several in self.evaluations.items():
            first, last = several[0], several[-1]
            starts = first.metrics if first.step == 0 else {}  # a follower's first checkpoint is no start
            for metric, now in last.metrics.items() if last.step != 0 else ():
                start = starts[metric].value if metric in starts else math.nan
                if math.isfinite(now.value):
                    found[f"{name}/{metric}"] = (start if math.isfinite(start) else None, now.value)
        if (ends := reward_ends(self.rows)) is not None:
            found[REWARD] = ends
        return found


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure of an arm over its runs. start, now: means. low, high: the lowest and the highest run now. change: mean
    of now - start; change_low, change_high: of the single runs. runs: that have the figure. start and changes are None
    where one of them has no start: they would be of other runs than ``now``."""

    start: float | None
    now: float
    low: float
    high: float
    change: float | None
    change_low: float | None
    change_high: float | None
    runs: int


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs of one configuration. label: the settings, KEY=VALUE, that are not what they are in most of the other arms;
    empty where all are. runs: by seed."""

    label: tuple[str, ...]
    runs: Sequence[PastRun]

    @property
    def steps(self) -> tuple[int, int]:
        """Of the run that has done the fewest, and of the one that has done the most."""
        done = [run.steps for run in self.runs]
        return min(done), max(done)

    @property
    def twice(self) -> list[tuple[PastRun, PastRun]]:
        """Runs of one seed, each of which counts: one may be a copy of the other."""
        return [(one, other) for one, other in pairwise(self.runs) if one.seed == other.seed]

    def spreads(self) -> dict[str, Spread]:
        """Every figure that one of the runs has."""
        by_run = [run.figures() for run in self.runs]
        names = dict.fromkeys(name for figures in by_run for name in figures)
        return {name: _spread([of[name] for of in by_run if name in of]) for name in names}


def find_runs(places: Sequence[str | Path]) -> list[Path]:
    """The folders of runs that have begun among ``places`` and below them, each once. Raises RunFolderError for a place
    without any run."""
    found: dict[Path, None] = {}
    for place in map(Path, places):
        here = sorted(path.parent for path in place.rglob("metrics.jsonl"))
        here = [folder for folder in here if (folder / "config.yaml").exists()]
        if not here and not not_begun([place], ()):
            raise RunFolderError(
                f"{place}: no run there or below, a folder with config.yaml and metrics.jsonl"
            )
        found.update(dict.fromkeys(folder.resolve() for folder in here))
    return list(found)


def read_run(folder: Path, ignored: Collection[str] = (), *, judge: str | None = None) -> PastRun:
    """ignored: dotted keys, or sections, of settings that decide no result. judge: see
    ``PastRun``; the setting may be null, which takes whatever model the servers had.

    Raises LogError and JsonError for files that are not a run's.
    """
    run = RunFolder(folder)
    settings = dict(flat_settings(run.written_config()))
    for key in _CAPTIONS:
        if isinstance(pool := settings.get(key), str):
            whole = Path(pool).resolve()
            for recipe in folder.resolve().parents[:2]:
                # What a recipe has made lies in its folder, and another seed's recipe has made the same.
                if RunFolder(recipe).config.exists() and whole.is_relative_to(recipe):
                    whole = whole.relative_to(recipe)
            settings[key] = str(whole)
    return PastRun(
        title=run.title,
        folder=folder,
        seed=settings.get("seed"),
        settings={key: value for key, value in settings.items() if not within(key, (*ignored, *_IDENTITY))},
        rows=read_metrics(run.metrics),
        evaluations={
            name: own
            for name, several in evaluations_of(run).items()
            if (own := [results for results in several if results.step is not None])
        },
        judge=judge,
    )


def not_begun(places: Sequence[str | Path], runs: Sequence[Path]) -> list[Path]:
    """The folders among ``places`` and below them of runs that have no metrics yet. runs: those that have some."""
    found: list[Path] = []
    for folder in sorted(
        {path.parent.resolve() for place in places for path in Path(place).rglob("config.yaml")}
    ):
        # A recipe's folder has runs below it, and what is inside of a run, such as of its trackers, is none.
        of_runs = any(run.is_relative_to(folder) or folder.is_relative_to(run) for run in runs)
        if not of_runs and not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return found


def arms_of(runs: Sequence[PastRun]) -> list[Arm]:
    """The runs by configuration, in the order in which configurations come first. Runs that different models have
    judged are different arms, for their rewards do not compare. Evaluations that were decided by different judges,
    texts or questions have names of their own, for the same reason."""
    groups: list[list[PastRun]] = []
    for run in _told_apart(runs):
        for group in groups:
            if group[0].settings == run.settings and len({one.judge for one in (*group, run)} - {None}) < 2:
                group.append(run)
                break
        else:
            groups.append([run])
    firsts = [_with_judge(group) for group in groups]
    keys = dict.fromkeys(key for settings in firsts for key in settings)
    # Of runs and not of arms: of two arms that with more runs has what is usual. In a sweep nothing is usual.
    counted = [of for of, group in zip(firsts, groups, strict=True) for _ in group]
    usual: dict[str, str | None] = {}
    for key in keys:
        ((value, holds),) = Counter(_value(of, key) for of in counted).most_common(1)
        usual[key] = value if 2 * holds > len(counted) else None
    return [
        Arm(
            label=tuple(
                f"{key}={value}"
                for key in keys
                if (value := _value(of, key)) != usual[key]
                and (key, value) != (_JUDGE, "null")
                and not (value == _ABSENT and any(other.startswith(f"{key}.") for other in of))
            ),
            runs=sorted(group, key=lambda run: (str(type(run.seed)), run.seed)),
        )
        for of, group in zip(firsts, groups, strict=True)
    ]


def _told_apart(runs: Sequence[PastRun]) -> list[PastRun]:
    ways: dict[str, list[JsonObject]] = {}
    for one in (one for run in runs for several in run.evaluations.values() for one in several):
        if (way := _decided_by(one)) not in (known := ways.setdefault(one.evaluator, [])):
            known.append(way)

    def name(one: Results) -> str:
        way, known = _decided_by(one), [way for way in ways[one.evaluator] if way]
        if not way and known:
            return f"{one.evaluator} (judge not noted)"
        keys = dict.fromkeys(key for way in known for key in way)
        differing = [key for key in keys if len({_value(of, key) for of in known}) > 1]
        label = ", ".join(f"{key}={_value(way, key)}" for key in differing)
        return f"{one.evaluator} ({label})" if label else one.evaluator

    told = []
    for run in runs:
        evaluations: dict[str, list[Results]] = {}
        for one in (one for several in run.evaluations.values() for one in several):
            evaluations.setdefault(name(one), []).append(one)
        told.append(replace(run, evaluations=evaluations))
    return told


def _decided_by(results: Results) -> JsonObject:
    """What decided an evaluation's figures beside the captions, by name; empty where no judge was asked, or noted."""
    asked: JsonDict = {key: results.asked[key] for key in ("mode", "data", "reading") if key in results.asked}
    for role, of in as_object(results.asked.get("endpoints", {}), "endpoints").items():
        asked |= {f"{role}.{key}": value for key, value in as_object(of, role).items() if key != "urls"}
    texts = as_object(results.asked.get("prompts", {}), "prompts")
    if scoring := {name: version for name, version in texts.items() if name != "caption"}:
        asked["prompts"] = digest_of(json.dumps(scoring, sort_keys=True), 4)
    return asked


def _with_judge(group: Sequence[PastRun]) -> JsonObject:
    """An arm's settings, with the model that judged where the setting left it open."""
    settings, judge = group[0].settings, next((run.judge for run in group if run.judge is not None), None)
    return settings if judge is None or settings.get(_JUDGE) is not None else {**settings, _JUDGE: judge}


def _spread(ends: Sequence[tuple[float | None, float]]) -> Spread:
    now = [end for _, end in ends]
    begun = [(start, end) for start, end in ends if start is not None]
    changes = [end - start for start, end in begun] if len(begun) == len(ends) else []
    return Spread(
        start=fmean(start for start, _ in begun) if changes else None,
        now=fmean(now),
        low=min(now),
        high=max(now),
        change=fmean(changes) if changes else None,
        change_low=min(changes, default=None),
        change_high=max(changes, default=None),
        runs=len(ends),
    )


def _value(settings: JsonObject, key: str) -> str:
    if key not in settings:
        return _ABSENT
    value = settings[key]
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
