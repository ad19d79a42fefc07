"""metrics.jsonl: one flat row for each step.

Names are ``area/what``; docs/tracking.md says what each is. Not-a-number and infinity are written as
Python, pandas and jq read them.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vcap_jax.report.step_log import LogError, StepLog, read_rows
from vcap_jax.system.json_values import JsonObject, as_whole

Scalar = float | int | str
Row = dict[str, Scalar]


# What two runs of the same seed may differ in: time, and work the clock decides.
_TIMING_PREFIXES = ("seconds/", "tokens_per_s/", "judge/", "second_judge/")
_TIMING_NAMES = frozenset({"compiles"})
_NOT_TIMING = frozenset({"judge/failed"})


class MetricsWriter(StepLog):
    """Appends rows to metrics.jsonl, each on disk before ``write`` returns, exactly one for a step."""

    def write(self, row: Mapping[str, object]) -> Row:
        """Appends a row and returns it in plain Python values. Raises for a step that has a row already.

        Values may be numbers, text or zero-dimensional arrays (numpy or JAX).
        """
        plain = {name: _scalar(name, value) for name, value in row.items()}
        if self.last_step is not None and plain["step"] == self.last_step:
            raise ValueError(f"{self.path}: step {self.last_step} has a row already")
        self.append([plain])
        return plain

    def go_on_after(self, done: int) -> str:
        """Removes rows of steps after ``done``, which are done again. Returns what is to be told: which steps have no
        row, or "" if none lacks."""
        self.truncate_after(done)
        lacking = sorted(
            set(range(1, done + 1)) - {as_whole(row["step"], "step") for row in read_rows(self.path)}
        )
        if not lacking:
            return ""
        steps = (
            f"{lacking[0]}" if len(lacking) == 1 else f"{lacking[0]} to {lacking[-1]} ({len(lacking)} in all)"
        )
        return (
            f"{self.path} has no row of steps that are done: {steps}. Plots and averages go without; to have them, end "
            "the run and put the file back from a copy"
        )

    def complete(self, step: int, columns: Mapping[str, object]) -> None:
        """Adds columns to the row of ``step``, the last one; those that it has stay. Whoever reads the file meanwhile
        finds the row without them or with them. Raises ValueError if another row is the last."""
        super().complete(step, {name: _scalar(name, value) for name, value in columns.items()})


def read_metrics(path: str | Path) -> list[Row]:
    """All complete rows of a metrics.jsonl; a torn last line, the mark of a killed run, is passed over.

    An empty list if there is no file: a run has none before its first step has ended.
    Raises LogError for a line that is no row of metrics.
    """
    return [{name: _read(path, row, name) for name in row} for row in read_rows(path)]


def _read(path: str | Path, row: JsonObject, name: str) -> Scalar:
    value = row[name]
    if not isinstance(value, float | int | str):
        raise LogError(f"{path}: {name} of step {row['step']} is {value!r}, where a number or text is wanted")
    return value


def deterministic(row: Mapping[str, Scalar]) -> Row:
    """The part of a row that a run of the same configuration and seed repeats exactly.

    Leaves out seconds, rates, what the judge's servers had to do (a slow one may cause a retry, a resumed run
    finds judgements in its store) and the compile count (a resumed run compiles again).
    """
    return {
        name: value
        for name, value in row.items()
        if name in _NOT_TIMING or (name not in _TIMING_NAMES and not name.startswith(_TIMING_PREFIXES))
    }


def _scalar(name: str, value: object) -> Scalar:
    if isinstance(value, str):
        return value
    if getattr(value, "shape", None) == ():
        value = np.asarray(value).item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"metric {name} must be a number or text, got {type(value).__name__}")
