"""Which checkpoint of a run is its best by a metric of its evaluations: ``best.json`` in the run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from vcap_jax.report.intervals import Measured, null_for_nan
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import read_record
from vcap_jax.system.json_values import JsonDict

BEST: Literal["best"] = "best"
AskedStep: TypeAlias = int | Literal["best"] | None
"""Which of a run's checkpoints: a step, the best, or the last."""

_FILE = "best.json"


@dataclass(frozen=True, kw_only=True)
class Best:
    """metric: EVALUATOR/METRIC. best_is: "highest" or "lowest". value: of the metric after ``step`` updates, with its
    interval, NaN where it has none. n: samples that it is over.
    start: the metric's value before the first; None where it is not known."""

    metric: str
    best_is: Literal["highest", "lowest"]
    step: int
    value: float
    low: Measured
    high: Measured
    n: int
    start: float | None = None

    def beats(self, other: Best) -> bool:
        """Whether this one is better; of equal ones neither is."""
        return self.value > other.value if self.best_is == "highest" else self.value < other.value

    def row(self) -> JsonDict:
        """As JSON holds it, and ``read_best`` reads it: null for NaN."""
        return null_for_nan(asdict(self))

    def __str__(self) -> str:
        start = "" if self.start is None else f", at the start {self.start:.4g}"
        return (
            f"step {self.step} by {self.metric}: {self.value:.4g} ({self.low:.4g} to {self.high:.4g}){start}"
        )


def read_best(folder: RunFolder) -> Best | None:
    """The best checkpoint that a run has kept so far; None where none was asked for, or none is there yet."""
    path = folder.root / _FILE
    return read_record(Best, path) if path.exists() else None


def write_best(folder: RunFolder, best: Best) -> None:
    """Notes the best checkpoint, which must be complete."""
    write_json(folder.root / _FILE, best.row())


def forget_best_after(folder: RunFolder, step: int) -> Best | None:
    """Removes the note of a best checkpoint that has seen more than ``step`` updates, and returns it: a run that goes
    on from an earlier checkpoint makes another policy of these steps. None where there is no such note."""
    best = read_best(folder)
    if best is None or best.step <= step:
        return None
    (folder.root / _FILE).unlink()
    return best
