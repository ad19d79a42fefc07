"""The reference pool: what the adjudicator's witness says about each sample, made before training and kept
fixed.

One JSON object per line, no header:

    {"version": 1, "id": "a", "references": ["...", "..."]}
    {"version": 1, "id": "c", "references": ["..."], "segments": [{"start": 0.0, "end": 2.0, "references":
    ["..."]}]}

``segments`` hold references of stretches of a video (paper Section 2.2, the local term). A row without a
version is version 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.jsonl import read_objects, string_list
from vcap_jax.data.manifest import Sample

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Segment:
    """References of one stretch of a video, start and end in seconds."""

    start: float
    end: float
    references: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a segment needs 0 <= start < end, not {self.start} .. {self.end}")
        if not self.references:
            raise ValueError(f"the segment {self.start} .. {self.end} has no reference")


@dataclass(frozen=True, kw_only=True)
class PoolEntry:
    """References of one sample, at least one; ``segments`` only for videos."""

    id: str
    references: tuple[str, ...]
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if not self.references:
            raise ValueError(f"sample {self.id} has no reference")


class ReferencePool:
    """References by sample id. Choices depend on (id, seed, step) alone, so a resumed run repeats them."""

    def __init__(self, entries: Iterable[PoolEntry]) -> None:
        """Raises ValueError for an id that occurs twice."""
        self._entries: dict[str, PoolEntry] = {}
        for entry in entries:
            if entry.id in self._entries:
                raise ValueError(f'the reference pool has the id "{entry.id}" twice: keep one of them')
            self._entries[entry.id] = entry

    @classmethod
    def read(cls, path: str | Path) -> ReferencePool:
        """Reads a pool.

        Raises:
            ManifestError: missing or empty file, a bad line, a version of another time, an id twice.
        """
        source = Path(path)
        entries: dict[str, PoolEntry] = {}
        for number, row in read_objects(source, "reference pool"):
            entry = _entry(row, f"{source}:{number}")
            if entry.id in entries:
                raise ManifestError(f'{source}:{number}: id "{entry.id}" occurs twice: keep one of the rows')
            entries[entry.id] = entry
        if not entries:
            raise ManifestError(f"the reference pool {source} is empty: make references first")
        return cls(entries.values())

    @classmethod
    def of_samples(cls, samples: Iterable[Sample]) -> ReferencePool:
        """The pool of the references that stand in the manifest itself; samples without any are left out."""
        return cls(PoolEntry(id=s.id, references=s.references) for s in samples if s.references)

    def write(self, path: str | Path) -> None:
        """Writes all entries, in order; the file appears complete or not at all."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        partial.write_text("".join(entry_line(entry) for entry in self._entries.values()), encoding="utf-8")
        partial.replace(target)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._entries

    def __getitem__(self, sample_id: str) -> PoolEntry:
        """Raises KeyError naming the id and the remedy."""
        entry = self._entries.get(sample_id)
        if entry is None:
            raise KeyError(f'no reference for the sample "{sample_id}": make one, or leave the sample out')
        return entry

    def entries(self) -> tuple[PoolEntry, ...]:
        """All entries in order."""
        return tuple(self._entries.values())

    def missing(self, samples: Iterable[Sample]) -> list[str]:
        """Ids of the samples that have no reference here."""
        return [sample.id for sample in samples if sample.id not in self._entries]

    def pick(self, sample_id: str, seed: int, step: int) -> str:
        """One of the sample's references, uniform over (seed, step), the same for the same arguments."""
        return _choose(self[sample_id].references, f"reference/{seed}/{step}/{sample_id}")

    def pick_segment(self, sample_id: str, seed: int, step: int) -> tuple[Segment, str] | None:
        """One of the sample's segments and one of its references; None if it has no segments."""
        segments = self[sample_id].segments
        if not segments:
            return None
        segment = _choose(segments, f"segment/{seed}/{step}/{sample_id}")
        return segment, _choose(segment.references, f"segment reference/{seed}/{step}/{sample_id}")


def entry_line(entry: PoolEntry) -> str:
    """One line of a pool file, with its line end. Append such lines to grow a pool as it is being made."""
    row: dict[str, Any] = {"version": VERSION, "id": entry.id, "references": list(entry.references)}
    if entry.segments:
        row["segments"] = [
            {"start": s.start, "end": s.end, "references": list(s.references)} for s in entry.segments
        ]
    return json.dumps(row, ensure_ascii=False) + "\n"


def _choose(options: Sequence[Any], key: str) -> Any:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return options[int.from_bytes(digest, "big") % len(options)]


def _entry(row: dict[str, Any], where: str) -> PoolEntry:
    version = row.get("version", VERSION)
    if version != VERSION:
        raise ManifestError(
            f"{where}: version {version!r} of the pool format; this program reads version {VERSION}"
        )
    identity = row.get("id")
    if not isinstance(identity, str) or not identity:
        raise ManifestError(f'{where}: "id" must be a text that is not empty, got {identity!r}')
    segments = row.get("segments", [])
    if not isinstance(segments, list):
        raise ManifestError(f'{where}: "segments" must be a list, got {segments!r}')
    try:
        return PoolEntry(
            id=identity,
            references=string_list(row.get("references"), where, "references"),
            segments=tuple(_segment(value, where) for value in segments),
        )
    except ManifestError:
        raise
    except ValueError as error:
        raise ManifestError(f"{where}: {error}: correct the row or drop it") from error


def _segment(value: Any, where: str) -> Segment:
    if not isinstance(value, dict):
        raise ManifestError(
            f'{where}: a segment must be an object with "start", "end", "references", got {value!r}'
        )
    times = [value.get("start"), value.get("end")]
    if not all(isinstance(t, int | float) and not isinstance(t, bool) for t in times):
        raise ManifestError(f'{where}: "start" and "end" of a segment must be seconds, got {times}')
    references = string_list(value.get("references"), where, "segments.references")
    return Segment(start=float(value["start"]), end=float(value["end"]), references=references)
