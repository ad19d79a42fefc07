"""What evaluations came to, as a run folder holds it: ``evaluations/NAME/WHEN.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record
from vcap_jax.system.json_values import JsonDict, JsonObject

START, TRAINED = "start", "trained"
"""Before the first step, and after the last."""
REFERENCES = "references"
"""What captions are compared with, evaluated as if they were captions."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """An evaluation without its items.

    evaluator: its name. when: "start", "step-40", "trained", or who else captioned ("references"). step: updates
    that the captioner had seen; None for one that is no policy of the run. metrics: by name. items: samples that were
    asked for. failed: those of them that have no value and enter no metric. changes: since the start, of metrics that
    are means over samples: the mean of the differences, over the samples measured both times. asked: of an evaluator
    that asks judges, who they were and how their questions went; empty for others. shares: the metrics that are shares
    of a whole, 0 to 1. measured: the samples that a metric is over, where ``n`` counts the pictures that several show.
    """

    evaluator: str
    when: str
    step: int | None
    metrics: Mapping[str, Value]
    items: int
    failed: int
    changes: Mapping[str, Value] = field(default_factory=dict)
    asked: JsonObject = field(default_factory=dict)
    shares: tuple[str, ...] = ()
    measured: Mapping[str, int] = field(default_factory=dict)

    def samples(self, metric: str) -> int:
        """How many it is over."""
        return self.measured.get(metric, self.metrics[metric].n)

    def row(self) -> JsonDict:
        """As JSON holds it, and ``json_records`` reads it."""
        row: JsonDict = {
            **vars(self),
            "metrics": _rows(self.metrics),
            "changes": _rows(self.changes),
            "shares": list(self.shares),
            "measured": dict(self.measured),
        }
        omitted = ("changes", "asked", "shares", "measured")
        return {key: value for key, value in row.items() if value or key not in omitted}

    def columns(self) -> dict[str, float]:
        """For metrics.jsonl: ``eval/NAME/METRIC`` and, as a share, ``eval/NAME/failed``."""
        area = f"eval/{self.evaluator}"
        columns = {f"{area}/{name}": value.value for name, value in self.metrics.items()}
        return columns | {f"{area}/failed": self.failed / self.items if self.items else 0.0}

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all."""
        write_json(path, self.row())


def _rows(values: Mapping[str, Value]) -> JsonObject:
    return {name: value.row() for name, value in values.items()}


def read_results(path: Path) -> Results | None:
    """What ``Results.write`` wrote; None if there is no file. Raises JsonError for a file of another kind."""
    return read_record(Results, path, remedy=evaluated_again(path)) if path.exists() else None


def evaluated_again(path: Path) -> str:
    """What is to be done for it. Not with the captions, which are all that is left of a policy between steps."""
    return f"to have it evaluated again, remove {path} and resume"


def evaluations_of(folder: RunFolder) -> dict[str, list[Results]]:
    """Every evaluation of a run, by evaluator; in order of steps, those without a step last."""
    found: dict[str, list[Results]] = {}
    for each in _folders(folder):
        for path in sorted(each.glob("*.json")):
            # A dot marks what a process left that was killed while it wrote.
            if not path.name.startswith("."):
                results = read_record(Results, path)
                found.setdefault(results.evaluator, []).append(results)
    for several in found.values():
        several.sort(key=lambda results: (results.step is None, results.step or 0, results.when))
    return found


def forget_after(folder: RunFolder, step: int, *, total: int) -> tuple[str, ...]:
    """Removes evaluations, and captions for them, of policies that have seen more than ``step`` of ``total`` updates: a
    run that goes on from there makes other policies of these steps. Returns what is gone, as "NAME/WHEN"."""
    gone = dict[str, None]()
    for each in _folders(folder):
        # The results first: they say that all else is there.
        for path in sorted(each.glob("*"), key=lambda path: path.suffix != ".json"):
            when = path.name.partition(".")[0]
            number = when.removeprefix("step-")
            later = number != when and number.isdecimal() and int(number) > step
            if path.is_file() and (later or (when == TRAINED and step < total)):
                path.unlink()
                gone[f"{each.name}/{when}"] = None
    return tuple(gone)


def _folders(folder: RunFolder) -> list[Path]:
    everywhere = folder.root / "evaluations"
    return sorted(each for each in everywhere.iterdir() if each.is_dir()) if everywhere.is_dir() else []
