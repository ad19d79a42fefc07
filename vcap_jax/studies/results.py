"""What is left of a finished run once its folder is gone: a line of JSON, from which every report can be made again.

Studies of several machines, or of several days, are joined by their lines. A line is known by the run's folder, which
is named by a digest of the configuration, by the starting policy and by the world's rules: results of others do not
mix. The code that made it is told in ``software``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from vcap_jax.data.jsonl import read_objects
from vcap_jax.report.step_log import replace_file
from vcap_jax.report.summary import FactCounts
from vcap_jax.studies.tasks import Plan, Task
from vcap_jax.studies.versions import policy_digest, world_digest
from vcap_jax.studies.witnesses import Meetings
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonDict, JsonValue, as_list, as_number, as_object, as_text

EARLY_STEPS = 10
"""Speed is the mean coverage of the training captions over the first so many steps."""
LEVEL = 0.3
"""And the number of steps until the coverage, averaged over ``WINDOW`` steps, reaches this level."""
WINDOW = 3


class ResultsError(VCapError, ValueError):
    """A file of results cannot be read; the message names file and line."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run. counts: of its held-out captions, over scenes in the order of the split.

    curve: coverage and false claims of the training captions, step by step, [T, 2]; empty for supervised runs and rows
    that were not trained. reference_size: mean m, true facts in a reference that it learned from. meetings: of the
    held-out captions with the held-out references.
    """

    counts: FactCounts
    curve: np.ndarray
    reference_size: float | None = None
    meetings: Meetings | None = None

    @property
    def early_coverage(self) -> float | None:
        """Mean coverage over the first ``EARLY_STEPS`` steps; None for shorter runs and those without steps."""
        return float(self.curve[:EARLY_STEPS, 0].mean()) if len(self.curve) >= EARLY_STEPS else None

    @property
    def steps_to_level(self) -> int | None:
        """The first step up to which ``WINDOW`` steps reach ``LEVEL`` on average; None if it is never reached."""
        if len(self.curve) < WINDOW:
            return None
        means = np.convolve(self.curve[:, 0], np.full(WINDOW, 1 / WINDOW), "valid")
        reached = np.flatnonzero(means >= LEVEL)
        return int(reached[0]) + WINDOW if len(reached) else None


@dataclass(frozen=True, kw_only=True)
class CaseText:
    """Captions of one held-out scene, each with who wrote it, in words."""

    scene: str
    captions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """A finished task. rows: what it gives to tables. machine, software, workers, seconds: how it was made; workers:
    tasks at a time. case: of the seed that shows one."""

    rows: Mapping[str, SeedResult]
    machine: str
    software: str
    workers: int
    seconds: float | None
    case: CaseText | None = None


Known = Mapping[str, TaskResult]
"""Finished tasks by ``identity``."""


def identity(task: Task) -> str:
    """What a task's result is known by, on every machine."""
    return f"{task.folder}/{task.result}"


def write_results(path: Path, known: Known) -> None:
    """One line for each task, in the order of their identities."""
    made_with = {"policy": policy_digest(), "world": world_digest()}
    lines = [
        json.dumps({"task": name, **made_with, **_told(known[name])}, separators=(",", ":"))
        for name in sorted(known)
    ]
    replace_file(path, "".join(line + "\n" for line in lines).encode())


def read_results(paths: Iterable[Path]) -> tuple[dict[str, TaskResult], int]:
    """The tasks of all files, and how many lines were left out as another starting policy or world made them.

    Of a task that stands in several files the last counts. Raises ResultsError for a file that is none, OSError.
    """
    made_with, others = (policy_digest(), world_digest()), 0
    known: dict[str, TaskResult] = {}
    for path in paths:
        for line, row in read_objects(path, "file of results"):
            try:
                if (as_text(row["policy"], "policy"), as_text(row["world"], "world")) == made_with:
                    known[as_text(row["task"], "task")] = _read(row)
                else:
                    others += 1
            except (KeyError, TypeError, ValueError) as error:
                raise ResultsError(
                    f"{path}, line {line}: {error!r}; give a results.jsonl that launch/reproduce.py wrote"
                ) from None
    return known, others


def known_keys(plan: Plan, known: Known) -> frozenset[str]:
    """Keys of the plan's tasks that need not be run for their results."""
    return frozenset(key for key, task in plan.tasks.items() if identity(task) in known)


def _told(result: TaskResult) -> JsonDict:
    told: JsonDict = {
        "machine": result.machine,
        "software": result.software,
        "workers": result.workers,
        "seconds": result.seconds,
        "rows": {name: _told_row(row) for name, row in result.rows.items()},
    }
    if result.case is not None:
        told["case"] = {"scene": result.case.scene, "captions": [list(one) for one in result.case.captions]}
    return told


def _told_row(row: SeedResult) -> JsonDict:
    counts: JsonDict = {one.name: _integers(getattr(row.counts, one.name)) for one in fields(FactCounts)}
    told: JsonDict = {"counts": counts, "curve": row.curve.tolist()}
    if row.reference_size is not None:
        told["reference_size"] = row.reference_size
    if row.meetings is not None:
        met: JsonDict = {name: _integers(getattr(row.meetings, name)) for name in _MEETING}
        told["meetings"] = met | {"scenes": row.meetings.scenes}
    return told


_MEETING = tuple(one.name for one in fields(Meetings) if one.name != "scenes")


def _integers(values: np.ndarray) -> list[JsonValue]:
    return [int(value) for value in values]


def _read(row: Mapping[str, object]) -> TaskResult:
    rows = as_object(row["rows"], "rows")
    seconds = row["seconds"]
    case = None
    if "case" in row:
        told = as_object(row["case"], "case")
        pairs = [as_list(pair, "captions") for pair in as_list(told["captions"], "captions")]
        captions = tuple((as_text(who, "who"), as_text(text, "caption")) for who, text in pairs)
        case = CaseText(scene=as_text(told["scene"], "scene"), captions=captions)
    return TaskResult(
        rows={name: _read_row(as_object(told, name)) for name, told in rows.items()},
        machine=as_text(row["machine"], "machine"),
        software=as_text(row["software"], "software"),
        workers=int(as_number(row["workers"], "workers")),
        seconds=None if seconds is None else as_number(seconds, "seconds"),
        case=case,
    )


def _read_row(told: JsonDict) -> SeedResult:
    counts = as_object(told["counts"], "counts")
    meetings = None
    if "meetings" in told:
        met = as_object(told["meetings"], "meetings")
        arrays = {name: _array(met, name) for name in _MEETING}
        meetings = Meetings(scenes=int(as_number(met["scenes"], "scenes")), **arrays)
    size = told.get("reference_size")
    return SeedResult(
        counts=FactCounts(**{one.name: _array(counts, one.name) for one in fields(FactCounts)}),
        curve=np.array(as_list(told["curve"], "curve"), np.float64).reshape(-1, 2),
        reference_size=None if size is None else as_number(size, "reference_size"),
        meetings=meetings,
    )


def _array(told: JsonDict, name: str) -> np.ndarray:
    return np.array(as_list(told[name], name), np.int64)
