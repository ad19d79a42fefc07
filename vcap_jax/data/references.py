"""The reference pool: what the adjudicator's witness says about each sample, made before training and kept
fixed.

One JSON object per line:

    {"version": 1, "id": "a", "references": ["...", "..."]}
    {"version": 1, "id": "c", "references": ["..."], "segments": [{"start": 0.0, "end": 2.0, "references":
    ["..."]}]}

``segments`` hold references of stretches of a video (paper Section 2.2, the local term). A row without a
version is version 1. A pool that this package wrote begins with a header, which says who wrote it and how, and
holds a digest of the rows; in a pool of your own there is none.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.jsonl import other_keys, read_objects, row_id, string_list, without_nulls
from vcap_jax.data.manifest import Sample
from vcap_jax.system.digests import digest_of, number_of
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import JsonDict, JsonError, JsonObject

VERSION = 1
T = TypeVar("T")

HEADER_KEY = "pool"
"""The first line is a header if it has this key; its value is the header's version."""
_KEYS = {
    "version": (),
    "id": ("uid", "key", "name", "image_id", "video_id", "sample_id"),
    "references": ("caption", "captions", "ref", "refs", "reference_captions"),
    "segments": ("windows", "clips"),
}
"""The keys of a row, each with what other projects call it."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Who wrote a pool and how: equal ones give equal pools.

    writer: a checkpoint or a served model, in words. weights: fingerprint of its parameters; None where they
    cannot be seen. seed: of the draws. settings: sampling, prompts and visual budget, as JSON holds them.
    asked: digest of the samples it was written for.
    """

    writer: str
    weights: str | None
    seed: int
    settings: JsonObject
    asked: str


@dataclass(frozen=True, kw_only=True)
class PoolHeader:
    """provenance: how the rows came about. created: when (ISO 8601). entries: rows. digest: of their lines."""

    provenance: Provenance
    created: str
    entries: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Segment:
    """References of one stretch of a video, start and end in seconds."""

    start: float
    end: float
    references: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end < math.inf:
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

    def __init__(self, entries: Iterable[PoolEntry], header: PoolHeader | None = None) -> None:
        """Raises ValueError for an id that occurs twice. header: of the file it was read from, if it had one."""
        self.header = header
        self._entries: dict[str, PoolEntry] = {}
        for entry in entries:
            if entry.id in self._entries:
                raise ValueError(f'the reference pool has the id "{entry.id}" twice: keep one of them')
            self._entries[entry.id] = entry

    @classmethod
    def read(cls, path: str | Path, what: str = "reference pool") -> ReferencePool:
        """Reads a pool. what: it is called in errors.

        Raises ManifestError: missing or empty file, a bad line, a version of another time, an id twice, rows that are
        not those the header was written for.
        """
        source = Path(path)
        entries: dict[str, PoolEntry] = {}
        header: PoolHeader | None = None
        if (own := source / "references" / "train.jsonl").is_file():
            raise ManifestError(
                f"the {what} {source} is the folder of a run: name a file in it, such as {own}"
            )
        for number, row in read_objects(source, what):
            if number == 1 and HEADER_KEY in row:
                header = _header(row, source)
                continue
            entry = _entry(without_nulls(row), f"{source}:{number}")
            if entry.id in entries:
                raise ManifestError(f'{source}:{number}: id "{entry.id}" occurs twice: keep one of the rows')
            entries[entry.id] = entry
        if not entries:
            raise ManifestError(f"the {what} {source} is empty: write some first")
        pool = cls(entries.values(), header)
        if header is not None and pool.digest() != header.digest:
            raise ManifestError(
                f"{source} was changed after it was written: its rows are not those of its header. Write it "
                "again, or remove its first line to use it as a pool of your own"
            )
        return pool

    @classmethod
    def of_samples(cls, samples: Iterable[Sample]) -> ReferencePool:
        """The pool of the references that stand in the manifest itself; samples without any are left out."""
        return cls(PoolEntry(id=s.id, references=s.references) for s in samples if s.references)

    def write(self, path: str | Path, provenance: Provenance | None = None, *, created: str = "") -> None:
        """Writes all entries, in order; the file appears complete or not at all.

        provenance, created: for a header (see ``PoolHeader``); without the first there is none.
        """
        lines = [entry_line(entry) for entry in self._entries.values()]
        if provenance is not None:
            head = {HEADER_KEY: VERSION, **asdict(provenance)}
            head |= {"created": created, "entries": len(lines), "digest": self.digest()}
            lines.insert(0, json.dumps(head, ensure_ascii=False) + "\n")
        replace_file(Path(path), "".join(lines).encode())

    def digest(self) -> str:
        """Of the entries in their order, whatever header or spacing the file has."""
        whole = hashlib.blake2b(digest_size=16)
        for entry in self._entries.values():
            whole.update(entry_line(entry).encode())
        return whole.hexdigest()

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

    def texts(self) -> dict[str, tuple[str, ...]]:
        """The references of each sample, by its id."""
        return {entry.id: entry.references for entry in self._entries.values()}

    def missing(self, samples: Iterable[Sample]) -> list[str]:
        """Ids of the samples that have no reference here."""
        return [sample.id for sample in samples if sample.id not in self._entries]

    def covered(self, samples: Sequence[Sample], say: Callable[[str], None]) -> list[Sample]:
        """The samples that have a reference here; says how many have none."""
        if without := self.missing(samples):
            say(
                f"{len(without)} samples have no reference and are left out, the first: {', '.join(without[:5])}"
            )
        return [sample for sample in samples if sample.id in self]

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
    row: JsonDict = {"version": VERSION, "id": entry.id, "references": list(entry.references)}
    if entry.segments:
        row["segments"] = [
            {"start": float(s.start), "end": float(s.end), "references": list(s.references)}
            for s in entry.segments
        ]
    return json.dumps(row, ensure_ascii=False) + "\n"


def asked_digest(samples: Iterable[Sample]) -> str:
    """Of the samples a pool is written for: their ids and own prompts, in order."""
    asked = [[sample.id, sample.prompt] for sample in samples]
    return digest_of(json.dumps(asked))


def _choose(options: Sequence[T], key: str) -> T:
    return options[number_of(key) % len(options)]


def _check_version(version: object, where: str) -> None:
    if version != VERSION:
        raise ManifestError(
            f"{where}: version {version!r} of the pool format; this program reads version {VERSION}"
        )


def _header(row: JsonObject, source: Path) -> PoolHeader:
    _check_version(row[HEADER_KEY], f"{source}:1")
    try:
        return as_record(PoolHeader, {**row, "provenance": row}, f"{source}:1: the header")
    except JsonError as error:
        raise ManifestError(
            f"{error}: write the pool again, or remove the line to use it as a pool of your own"
        ) from error


def _entry(row: JsonObject, where: str) -> PoolEntry:
    _check_version(row.get("version", VERSION), where)
    other_keys(row, where, _KEYS)
    segments = row.get("segments", [])
    if not isinstance(segments, list):
        raise ManifestError(f'{where}: "segments" must be a list, got {segments!r}')
    try:
        return PoolEntry(
            id=row_id(row, where),
            references=string_list(row.get("references"), where, "references"),
            segments=tuple(_segment(value, where) for value in segments),
        )
    except ManifestError:
        raise
    except (ValueError, OverflowError) as error:  # the latter: seconds beyond every number
        raise ManifestError(f"{where}: {error}: correct the row or drop it") from error


def _segment(value: object, where: str) -> Segment:
    if not isinstance(value, dict):
        raise ManifestError(
            f'{where}: a segment must be an object with "start", "end", "references", got {value!r}'
        )
    times = [value.get("start"), value.get("end")]
    if not all(isinstance(t, int | float) and not isinstance(t, bool) for t in times):
        raise ManifestError(f'{where}: "start" and "end" of a segment must be seconds, got {times}')
    references = string_list(value.get("references"), where, "segments.references")
    return Segment(start=float(value["start"]), end=float(value["end"]), references=references)
