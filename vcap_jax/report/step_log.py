"""An append-only JSONL file whose rows belong to steps, and which survives being killed at any moment.

A row counts once its line ends. Whatever a killed process left after the last line end was never a row:
reading passes over it and writing removes it first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import drop_torn_end, naming, replace_file
from vcap_jax.system.json_values import JsonDict, parse_json


class LogError(VCapError, ValueError):
    """A log whose rows are not what was written to it; the message names the file and the line."""


class StepLog:
    """Rows ``{"step": int, ...}`` of non-decreasing step, each durable when ``append`` returns."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.last_step: int | None = None
        for row in complete_rows(self.path):
            self.last_step = row.step
        drop_torn_end(self.path)
        self._file = self.path.open("ab")

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Writes the rows with one flush and fsync. Raises ValueError if a step goes back."""
        lines = []
        last = self.last_step
        for row in rows:
            step = row["step"]
            if not isinstance(step, int) or isinstance(step, bool):
                raise TypeError(f"{self.path}: step must be an int, got {step!r}")
            if last is not None and step < last:
                raise ValueError(
                    f"{self.path}: step {step} comes after step {last}; truncate_after({step - 1}) allows it"
                )
            last = step
            lines.append(_line(row))
        with naming(self.path):
            self._file.write("".join(lines).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        self.last_step = last

    def truncate_after(self, step: int) -> int:
        """Removes every row of a later step, as resuming from ``step`` needs; returns how many."""
        end, removed, last = 0, 0, None
        for row in complete_rows(self.path):
            if row.step > step:
                removed += 1
            elif not removed:
                end, last = row.end, row.step
        if removed:
            os.truncate(self.path, end)
        self.last_step = last
        return removed

    def complete(self, step: int, columns: Mapping[str, object]) -> None:
        """Adds ``columns`` to the last row, which must be of ``step``; those that it has stay. Raises ValueError."""
        found = list(complete_rows(self.path))
        if not found or found[-1].step != step:
            raise ValueError(f"{self.path}: the last row is not that of step {step}")
        row = found[-1].values
        if columns.keys() <= row.keys():
            return
        self._file.close()
        whole = _line({**row, **columns, **row}).encode()
        replace_file(self.path, b"".join([*(before.line for before in found[:-1]), whole]))
        self._file = self.path.open("ab")

    def close(self) -> None:
        self._file.close()


def _line(row: Mapping[str, object]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(", ", ": ")) + "\n"


def read_rows(path: str | Path) -> list[JsonDict]:
    """All complete rows; none if there is no file. Raises LogError for a complete line that is no row."""
    return [row.values for row in complete_rows(Path(path))]


@dataclass(frozen=True)
class StepRow:
    """A complete row. line: as it stands in the file, with its end; begin: its first byte."""

    step: int
    line: bytes
    values: JsonDict
    begin: int

    @property
    def end(self) -> int:
        return self.begin + len(self.line)


def complete_rows(path: Path, begin: int = 0) -> Iterator[StepRow]:
    """The complete rows one after another; none if there is no file. begin: of the first of them.

    Raises LogError for a complete line that is no row.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(begin)
        whole = begin == 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            where = f"{path}, line {number}" if whole else f"{path}, the line at byte {begin}"
            try:
                values = parse_json(line)
            except ValueError as error:
                raise LogError(f"{where}: not JSON ({error}); remove the line to go on") from error
            if not isinstance(values, dict) or not isinstance(step := values.get("step"), int):
                raise LogError(f"{where}: a row needs an integer `step`; remove the line to go on")
            yield StepRow(step, line, values, begin)
            begin += len(line)
