"""A file of captions that grows line by line, and survives being killed at any moment.

A line is ``{"id": ..., "captions": [...]}``, with ``tokens`` and ``truncated`` where they are known, or
``{"id": ..., "failure": ...}``.
Of a sample that occurs several times the last line counts, as where a failure was tried again. Two lines with
different captions of a sample are refused where others wrote the file: all of its captions belong in one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.protocol import Captions, EvaluatorError, captions_of
from vcap_jax.system.files import drop_torn_end, naming
from vcap_jax.system.json_values import JsonError


class WrongCaptions(EvaluatorError):
    """A file of captions that is not as it must be; the message names the entry and what to do."""


class CaptionsFile:
    """An open file; use as a context manager. What a kill tore off its end is cut away. Raises WrongCaptions for a
    file that is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        drop_torn_end(path)
        self._found = read_captions(path, others=False) if path.exists() else {}
        self._file = path.open("a", encoding="utf-8")

    def missing(self, samples: Sequence[Sample], *, failed: bool = True) -> list[Sample]:
        """Those without a caption. failed: with those that nobody could caption, which are tried again."""
        found = self._found
        return [s for s in samples if s.id not in found or (failed and found[s.id].failure is not None)]

    def add(self, captions: Captions) -> None:
        """Keeps an entry; it is on disk when this returns."""
        with naming(self.path):
            self._file.write(json.dumps(captions.row(), ensure_ascii=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self._found[captions.id] = captions

    def of(self, samples: Sequence[Sample]) -> list[Captions]:
        """An entry for each sample, in their order."""
        nothing = "no caption was written for it"
        return [self._found.get(s.id, Captions(id=s.id, failure=nothing)) for s in samples]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with naming(self.path):
            self._file.close()


def read_captions(path: Path, *, others: bool = True) -> dict[str, Captions]:
    """The entries of a file, by sample. others: whether it may be one that others wrote. Raises ManifestError and
    WrongCaptions."""
    found: dict[str, Captions] = {}
    for number, row in read_objects(path, "file of captions"):
        try:
            captions = captions_of(row, "its row")
        except JsonError as error:
            remedy = 'write {"id": ..., "captions": [...]}, or with "failure" why there are none'
            raise WrongCaptions(
                f"{path}:{number}: not an entry of captions ({error}): {remedy if others else 'move the file away'}"
            ) from error
        before = found.get(captions.id)
        if others and before is not None and before.texts and captions.texts not in ((), before.texts):
            raise WrongCaptions(
                f"{path}:{number}: other captions of {captions.id!r} stand in an earlier line: put all of a sample's "
                "captions in one line, or leave one out"
            )
        found[captions.id] = captions
    return found
