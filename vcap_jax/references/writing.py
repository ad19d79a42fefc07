"""Writing a reference pool: sample by sample, resumable, shared out over processes, joined in order.

Every process captions its own part of the manifest and writes it into ``POOL.parts/``, a line for
each sample or window as soon as it is captioned. Whichever finishes last joins the parts. A caption
depends on the writer, the seed and the sample's index in the manifest alone. So one process and many
give the same pool.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from vcap_jax.captioning.parts import (
    Shard,
    as_read,
    check_plan,
    differing,
    grow,
    held,
    part_file,
    partial_file,
    parts_folder,
)
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.jsonl import last_row, read_objects, string_list
from vcap_jax.data.manifest import Sample
from vcap_jax.data.media import TimeWindow
from vcap_jax.data.pipeline import BadSample
from vcap_jax.data.references import PoolEntry, Provenance, ReferencePool, Segment
from vcap_jax.data.storage import raise_if_gone
from vcap_jax.references.asking import with_answers
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_records import as_record
from vcap_jax.system.json_values import (
    JsonDict,
    JsonObject,
    as_list,
    as_number,
    as_whole,
)
from vcap_jax.system.shutdown import raise_if_requested, requested


class PoolError(VCapError, RuntimeError):
    """A pool that cannot be written where it was asked for; the message says what to do instead."""


_TOLD = {"whole": "references", "windows": "references of windows", "answers": "answers to questions"}
"""What a user is told of each part of a pool."""
_TRIED = 64
"""Samples with windows or questions that are tried again together: an error among them loses what they got."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """Captions of a sample or of a window of its video, or answers to a question. index: of the item among all that are
    asked for."""

    index: int
    references: tuple[str, ...]
    window: TimeWindow | None = None


class ReferenceWriter(Protocol):
    """Captions samples. Equal provenance, equal captions (as far as a server keeps its word)."""

    @property
    def provenance(self) -> Provenance: ...

    @property
    def segments(self) -> int:
        """Windows of each video that get references of their own."""
        ...

    @property
    def questions(self) -> int:
        """Questions that each sample is asked."""
        ...

    def whole(
        self, samples: Sequence[Sample], indices: Sequence[int], on_bad: Callable[[BadSample], None]
    ) -> Iterator[Written]:
        """Captions whole samples, in order; ``indices`` are theirs in the manifest, ascending."""
        ...

    def windows(
        self,
        samples: Sequence[Sample],
        indices: Sequence[int],
        skip: int,
        on_bad: Callable[[BadSample], None],
    ) -> Iterator[Written]:
        """Captions ``segments`` windows of every video but for the first ``skip`` windows of the first one; window k of
        the sample at index i has index ``i * segments + k``."""
        ...

    def answers(
        self,
        samples: Sequence[Sample],
        indices: Sequence[int],
        skip: int,
        on_bad: Callable[[BadSample], None],
    ) -> Iterator[Written]:
        """Answers to the ``questions`` of every sample, which are counted as windows are."""
        ...


def write_pool(
    path: Path,
    writer: ReferenceWriter,
    samples: Sequence[Sample],
    *,
    shard: Shard | None = None,
    retry_failed: bool = False,
    on_progress: Callable[[str, int, int, int], None] | None = None,
    on_bad: Callable[[BadSample], None] | None = None,
) -> ReferencePool | None:
    """Writes the pool, or this process's part of it; goes on where an interrupted attempt left off.

    samples: all of them, whatever the shard. retry_failed: of a pool that is complete, try again the samples that got
    no entry. on_progress: told (what, done, total, done by this process) after every
    caption. on_bad: told of samples that get no entry, as they cannot be read or nothing was said of them.
    Returns the pool, or None while parts of other processes are missing. A signal ends it, with Stopped, once the
    captions in work are written.
    Raises PoolError if another pool, or parts of another, lie at ``path``, if another process is writing the part, or
    if no sample could be captioned; StorageError if what an interrupted attempt has read is not there any more.
    """
    shard = shard or Shard()
    provenance = writer.provenance
    report = on_bad or (lambda bad: None)
    if path.exists():
        pool = _existing(path, provenance)
        return _retried(path, pool, writer, samples, report) if retry_failed else pool
    parts = parts_folder(path)
    check_plan(parts, asdict(provenance), what="pool", error=PoolError)
    first, last = shard.span(len(samples))
    jobs: list[tuple[str, int, int, Callable[[int], Iterator[Written]]]] = [
        ("whole", first, last, lambda index: writer.whole(samples[index:last], range(index, last), report))
    ]
    for beside in _parts_of_samples(writer):

        def items(index: int, one: _Part = beside) -> Iterator[Written]:
            begin, skip = divmod(index, one.per)
            return one.draw(samples[begin:last], range(begin, last), skip, report)

        jobs.append((beside.name, first * beside.per, last * beside.per, items))
    for name, start, stop, captions in jobs:
        part = part_file(parts, name, shard)
        if part.exists():
            continue
        files = partial(_files, samples, (stop - start) // max(1, last - first))
        with held(part, PoolError):
            _write_part(
                part,
                start,
                stop,
                captions,
                files,
                lambda *told, name=name: on_progress and on_progress(_TOLD[name], *told),
            )
    return _join(path, parts, provenance, samples, shard.count, [job[0] for job in jobs])


class _Part(NamedTuple):
    """What is drawn beside whole samples. per: how many items a sample has."""

    name: str
    per: int
    draw: Callable[[Sequence[Sample], Sequence[int], int, Callable[[BadSample], None]], Iterator[Written]]


def _parts_of_samples(writer: ReferenceWriter) -> list[_Part]:
    parts = (
        _Part("windows", writer.segments, writer.windows),
        _Part("answers", writer.questions, writer.answers),
    )
    return [part for part in parts if part.per]


def _files(samples: Sequence[Sample], each: int, index: int) -> Sequence[Path]:
    """Of an item's sample, where each sample has so many items."""
    return samples[index // each].files


def _write_part(
    part: Path,
    start: int,
    stop: int,
    captions: Callable[[int], Iterator[Written]],
    files: Callable[[int], Sequence[Path]],
    on_progress: Callable[[int, int, int], object],
) -> None:
    """files: of an item's sample."""
    # Items are captioned in order, so everything after the last one written is still to do.
    last = last_row(partial_file(part))
    begin = start if last is None else as_whole(last["place"], f"{part}: place") + 1
    if start < begin < stop:
        # A pool lacks for ever what could not be read while it was written.
        raise_if_gone(files(begin), files(begin - 1)[0])
    done = begin - start

    def rows() -> Iterator[Mapping[str, object]]:
        nonlocal done
        if begin >= stop:
            return
        for written in captions(begin):
            row: dict[str, object] = {"place": written.index, "references": list(written.references)}
            if written.window is not None:
                row["window"] = [written.window.start, written.window.end]
            yield row
            done = written.index + 1 - start
            on_progress(done, stop - start, written.index + 1 - begin)

    grow(part, rows(), stopped=lambda: f"stopped with {done} of {stop - start} captions written")


def _existing(path: Path, provenance: Provenance) -> ReferencePool:
    pool = ReferencePool.read(path)
    if pool.header is None or pool.header.provenance != _as_read(provenance):
        before = {} if pool.header is None else asdict(pool.header.provenance)
        changes = differing(before, as_read(asdict(provenance)))
        by = "without a header" if pool.header is None else f"by {pool.header.provenance.writer}"
        changed = "" if pool.header is None else f" ({changes} differ)"
        raise PoolError(
            f"{path} already holds another pool, {by}{changed}: give another path, or remove it to write it anew"
        )
    return pool


def _as_read(provenance: Provenance) -> Provenance:
    return as_record(Provenance, asdict(provenance), "a pool's provenance")


def _join(
    path: Path,
    parts: Path,
    provenance: Provenance,
    samples: Sequence[Sample],
    count: int,
    names: Sequence[str],
) -> ReferencePool | None:
    shards = [Shard(index=index, count=count) for index in range(count)]
    files = {name: [part_file(parts, name, shard) for shard in shards] for name in names}
    if not all(file.exists() for found in files.values() for file in found):
        # Another process may have joined and tidied up between our part and this look.
        return ReferencePool.read(path) if path.exists() else None
    try:
        whole = dict(_rows(files["whole"]))
        windows: dict[int, list[Segment]] = {}
        per, asked = (
            as_whole(provenance.settings.get(key, 0), f"{key} of a pool")
            for key in ("segments", "questions_per_sample")
        )
        for index, row in _rows(files.get("windows", [])):
            start, end = (
                as_number(t, "window of a part") for t in as_list(row["window"], "window of a part")
            )
            segment = Segment(start=float(start), end=float(end), references=_texts(row))
            windows.setdefault(index // per, []).append(segment)
        answers: dict[int, list[tuple[str, ...]]] = {}
        for index, row in _rows(files.get("answers", [])):
            answers.setdefault(index // asked, []).append(_texts(row))
    except (FileNotFoundError, ManifestError):
        # As above, in the middle of reading.
        if path.exists():
            return ReferencePool.read(path)
        raise
    if not whole:
        raise PoolError(f"none of {len(samples)} samples could be captioned, so {path} is not written")
    entries = [
        _entry(samples[index], _texts(row), answers.get(index, ()), windows.get(index, ()))
        for index, row in whole.items()
    ]
    pool = _written(path, entries, provenance)
    shutil.rmtree(parts, ignore_errors=True)
    return pool


def _entry(
    sample: Sample,
    references: Sequence[str],
    answers: Sequence[Sequence[str]] = (),
    windows: Sequence[Segment] = (),
) -> PoolEntry:
    return PoolEntry(id=sample.id, references=with_answers(references, answers), segments=tuple(windows))


def _written(path: Path, entries: Iterable[PoolEntry], provenance: Provenance) -> ReferencePool:
    ReferencePool(entries).write(path, provenance, created=datetime.now(UTC).isoformat(timespec="seconds"))
    return ReferencePool.read(path)


def _retried(
    path: Path,
    pool: ReferencePool,
    writer: ReferenceWriter,
    samples: Sequence[Sample],
    report: Callable[[BadSample], None],
) -> ReferencePool:
    """The pool with entries for those of the samples that had none and get one now. What came before a signal or an
    error is kept: it is raised once that is written. A kill loses a tenth of the pool at most, or ``_TRIED`` entries:
    it is written whole each time."""
    entries = {entry.id: entry for entry in pool.entries()}
    missing = [index for index, sample in enumerate(samples) if sample.id not in entries]

    def kept() -> None:
        nonlocal pool
        if len(entries) > len(pool):
            ordered = [entries[sample.id] for sample in samples if sample.id in entries]
            pool = _written(path, ordered, writer.provenance)

    try:
        for indices in _tried_together(writer, missing):
            for entry in _tried(writer, samples, indices, report):
                entries[entry.id] = entry
                if len(entries) - len(pool) >= max(_TRIED, len(pool) // 10):
                    kept()
            if requested():
                break
    finally:
        kept()
    raise_if_requested(f"stopped with {len(samples) - len(pool)} samples still without references")
    return pool


def _tried_together(writer: ReferenceWriter, missing: Sequence[int]) -> Iterator[Sequence[int]]:
    """Those that are asked about side by side: all, or some where entries come only once their parts are there."""
    most = _TRIED if _parts_of_samples(writer) else max(1, len(missing))
    for first in range(0, len(missing), most):
        yield missing[first : first + most]


def _tried(
    writer: ReferenceWriter,
    samples: Sequence[Sample],
    indices: Sequence[int],
    report: Callable[[BadSample], None],
) -> Iterator[PoolEntry]:
    """Entries of the samples at ``indices``: as they come, or where they have windows or questions once all of those
    are there."""
    parts = _parts_of_samples(writer)
    texts: dict[int, tuple[str, ...]] = {}
    for written in writer.whole([samples[index] for index in indices], indices, report):
        texts[written.index] = written.references
        if not parts:
            yield _entry(samples[written.index], written.references)
    if not parts or not texts:
        return
    windows: dict[int, list[Segment]] = {}
    answers: dict[int, list[tuple[str, ...]]] = {}
    found = [index for index in indices if index in texts]
    for part in parts:
        for written in part.draw([samples[index] for index in found], found, 0, report):
            index = written.index // part.per
            if written.window is None:
                answers.setdefault(index, []).append(written.references)
                continue
            segment = Segment(
                start=written.window.start, end=written.window.end, references=written.references
            )
            windows.setdefault(index, []).append(segment)
    if requested():
        return  # some may be lacking: these are tried again
    for index, references in texts.items():
        yield _entry(samples[index], references, answers.get(index, ()), windows.get(index, ()))


def _texts(row: JsonObject) -> tuple[str, ...]:
    return string_list(row["references"], "part of a reference pool", "references")


def _rows(files: Sequence[Path]) -> Iterator[tuple[int, JsonDict]]:
    for file in files:
        if not file.exists():
            raise FileNotFoundError(file)
        if file.stat().st_size:
            for _, row in read_objects(file, "part of a reference pool"):
                yield as_whole(row["place"], f"{file}: place"), row
