"""Writing a reference pool: sample by sample, resumable, shared out over processes, joined in order.

Every process captions its own part of the manifest and writes it into ``POOL.parts/``, a line for
each sample or window as soon as it is captioned. Whichever finishes last joins the parts. A caption
depends on the writer, the seed and the sample's index in the manifest alone. So one process and many
give the same pool.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from vcap_jax.captioning.parts import (
    Shard,
    as_read,
    check_plan,
    differing,
    earlier_file,
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
from vcap_jax.references.beside import with_answers
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import write_through
from vcap_jax.system.json_values import JsonDict, as_list, as_number, as_whole
from vcap_jax.system.shutdown import raise_if_requested, requested


class PoolError(VCapError, RuntimeError):
    """A pool that cannot be written where it was asked for; the message says what to do instead."""


Part = Literal["whole", "windows", "answers"]
WHOLE: Part = "whole"
WINDOWS: Part = "windows"
ANSWERS: Part = "answers"
_TOLD = {WHOLE: "references", WINDOWS: "references of windows", ANSWERS: "answers to questions"}
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
    def each(self) -> Mapping[Part, int]:
        """How many windows of each video get references of their own, and how many questions each sample is asked;
        what there is none of is not in it."""
        ...

    def write(
        self,
        part: Part,
        samples: Sequence[Sample],
        indices: Sequence[int],
        skip: int,
        on_bad: Callable[[BadSample], None],
    ) -> Iterator[Written]:
        """Captions whole samples, or ``each`` items of every sample, in order, but for the first ``skip``. indices: the
        samples' in the manifest, ascending; item k of the sample at index i has index ``i * each + k``."""
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
    no entry; what it was before is kept beside it (``earlier_pools``). on_progress: told (what, done, total, done by
    this process) after every caption. on_bad: told of samples that get no entry, as they cannot be read or nothing was
    said of them.
    Returns the pool, or None while parts of other processes are missing. A signal ends it, with Stopped, once the
    captions in work are written.
    Raises PoolError if another pool, or parts of another, lie at ``path``, if another process is writing the part, if
    no sample could be captioned, or nothing of its windows or questions; StorageError if what an interrupted attempt
    has read is not there any more.
    """
    shard = shard or Shard()
    report = on_bad or (lambda bad: None)
    if path.exists():
        pool = existing_pool(path, writer.provenance)
        return _retried(path, pool, writer, samples, report) if retry_failed else pool
    write_parts(path, writer, samples, shard, on_progress=on_progress, on_bad=report)
    try:
        if all(file.exists() for found in _files(path, writer, shard.count).values() for file in found):
            return join_parts(path, writer, samples, shard.count)
    except (FileNotFoundError, ManifestError):
        if not path.exists():
            raise
    # Another process may have joined and tidied up before we looked, or while we read.
    return ReferencePool.read(path) if path.exists() else None


def write_parts(
    path: Path,
    writer: ReferenceWriter,
    samples: Sequence[Sample],
    shard: Shard,
    *,
    on_progress: Callable[[str, int, int, int], None] | None,
    on_bad: Callable[[BadSample], None],
) -> None:
    """One process's part of a pool that is not there yet; arguments, signals and errors as of ``write_pool``."""
    about = as_read(asdict(writer.provenance))
    check_plan(
        parts_folder(path),
        about,
        what="pool",
        error=PoolError,
        taken_as=partial(_called_as_in, about),
    )
    for name, files in _files(path, writer, shard.count).items():
        part = files[shard.index]
        if not part.exists():
            with held(part, PoolError):
                _write_part(part, name, writer, samples, shard, on_bad, on_progress)


def _parts(writer: ReferenceWriter) -> dict[Part, int]:
    """What a pool is made of, and how many items of it a sample has."""
    return {WHOLE: 1, **writer.each}


def _files(path: Path, writer: ReferenceWriter, count: int) -> dict[Part, list[Path]]:
    """The files of every part, of one process after the other."""
    return {
        name: [part_file(parts_folder(path), name, Shard(index=index, count=count)) for index in range(count)]
        for name in _parts(writer)
    }


def _write_part(
    part: Path,
    name: Part,
    writer: ReferenceWriter,
    samples: Sequence[Sample],
    shard: Shard,
    report: Callable[[BadSample], None],
    on_progress: Callable[[str, int, int, int], None] | None,
) -> None:
    each = _parts(writer)[name]
    first, last = shard.span(len(samples))
    start, stop = first * each, last * each
    # Items are captioned in order, so everything after the last one written is still to do.
    there = last_row(partial_file(part))
    begin = start if there is None else as_whole(there["place"], f"{part}: place") + 1
    if start < begin < stop:
        # A pool lacks for ever what could not be read while it was written.
        raise_if_gone(samples[begin // each].files, samples[(begin - 1) // each].files[0])
    done = begin - start
    asked: Sequence[int] = range(first, last)
    if name != WHOLE:  # what has no reference of its own gets no entry, and why has been told
        asked = [written.index for written in _read([part_file(part.parent, WHOLE, shard)])]

    def rows() -> Iterator[Mapping[str, object]]:
        nonlocal done
        if begin >= stop:
            return
        at, skip = divmod(begin, each)
        left = [index for index in asked if index >= at]
        if not left:
            return
        for written in writer.write(name, [samples[index] for index in left], left, skip, report):
            row: dict[str, object] = {"place": written.index, "references": list(written.references)}
            if written.window is not None:
                row["window"] = [written.window.start, written.window.end]
            yield row
            done = written.index + 1 - start
            if on_progress is not None:
                on_progress(_TOLD[name], done, stop - start, written.index + 1 - begin)

    grow(part, rows(), stopped=lambda: f"stopped with {done} of {stop - start} captions written")


def _called_as_in(other: JsonDict, about: JsonDict) -> JsonDict:
    """``about`` with the writer's name of ``other`` where both have the same weights: a folder may have moved, or be
    named from elsewhere."""
    same = about.get("weights") is not None and about.get("weights") == other.get("weights")
    return about | {"writer": other["writer"]} if same else about


def existing_pool(path: Path, provenance: Provenance) -> ReferencePool:
    """The pool that lies at ``path``. Raises PoolError if it is not of this provenance, whatever a writer of the same
    weights is called."""
    pool = ReferencePool.read(path)
    before = {} if pool.header is None else as_read(asdict(pool.header.provenance))
    now = _called_as_in(before, as_read(asdict(provenance)))
    if before != now:
        by = "without a header"
        if pool.header is not None:
            by = f"by {pool.header.provenance.writer} ({differing(before, now)} differ)"
        raise PoolError(
            f"{path} already holds another pool, {by}: give another path, or remove it to write it anew"
        )
    return pool


def join_parts(path: Path, writer: ReferenceWriter, samples: Sequence[Sample], count: int) -> ReferencePool:
    """The pool of the parts that ``count`` processes have written. Raises PoolError if no sample was captioned, or
    nothing of windows or questions; FileNotFoundError or ManifestError for a part that is not there any more."""
    each, files = _parts(writer), _files(path, writer, count)
    written = {name: list(_read(found)) for name, found in files.items()}
    # References that lack all of what was asked for would be others.
    if lacking := [name for name, found in written.items() if not found]:
        for file in (file for name in lacking for file in files[name]):
            file.unlink(missing_ok=True)  # it is tried again
        what = f"not one of the {_TOLD[lacking[0]]} could be written, so {path} is not"
        if lacking[0] == WHOLE:
            what = f"none of {len(samples)} samples could be captioned, so {path} is not written"
        raise PoolError(f"{what}; above stands why, of each")
    pool = _written(path, _entries(samples, each, written), writer.provenance)
    shutil.rmtree(parts_folder(path), ignore_errors=True)
    return pool


def _entries(
    samples: Sequence[Sample], each: Mapping[Part, int], written: Mapping[Part, Iterable[Written]]
) -> list[PoolEntry]:
    """An entry of every sample that has references of its own, with what was written of its windows and answers."""
    windows: dict[int, list[Segment]] = {}
    answers: dict[int, list[tuple[str, ...]]] = {}
    whole = {one.index: one.references for one in written[WHOLE]}
    for one in written.get(WINDOWS, ()):
        assert one.window is not None
        segment = Segment(start=one.window.start, end=one.window.end, references=one.references)
        windows.setdefault(one.index // each[WINDOWS], []).append(segment)
    for one in written.get(ANSWERS, ()):
        answers.setdefault(one.index // each[ANSWERS], []).append(one.references)
    return [
        PoolEntry(
            id=samples[index].id,
            references=with_answers(references, answers.get(index, ())),
            segments=tuple(windows.get(index, ())),
        )
        for index, references in whole.items()
    ]


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
    assert pool.header is not None
    provenance = pool.header.provenance
    entries = {entry.id: entry for entry in pool.entries()}
    missing = [index for index, sample in enumerate(samples) if sample.id not in entries]

    before = pool.digest()

    def kept() -> None:
        nonlocal pool
        if len(entries) > len(pool):
            if pool.digest() == before:  # a run that began with it is resumed with it alone
                aside = f"{earlier_file(path).name}-{before[:8]}"
                write_through(path.with_name(aside), lambda temporary: shutil.copyfile(path, temporary))
            ordered = [entries[sample.id] for sample in samples if sample.id in entries]
            pool = _written(path, ordered, provenance)

    # All side by side, or some where entries come only once their parts are there.
    most = _TRIED if writer.each else max(1, len(missing))
    try:
        for start in range(0, len(missing), most):
            for entry in _tried(writer, samples, missing[start : start + most], report):
                entries[entry.id] = entry
                if len(entries) - len(pool) >= max(_TRIED, len(pool) // 10):
                    kept()
            if requested():
                break
    finally:
        kept()
    raise_if_requested(f"stopped with {len(samples) - len(pool)} samples still without references")
    return pool


def earlier_pools(path: Path) -> list[Path]:
    """What the pool at ``path`` was before samples were tried again: each file's name ends with the beginning of the
    pool's digest."""
    return sorted(path.parent.glob(f"{glob.escape(earlier_file(path).name)}-*"))


def _tried(
    writer: ReferenceWriter,
    samples: Sequence[Sample],
    indices: Sequence[int],
    report: Callable[[BadSample], None],
) -> Iterator[PoolEntry]:
    """Entries of the samples at ``indices``: as they come, or where they have windows or questions once all of those
    are there."""
    each = _parts(writer)
    found: dict[Part, list[Written]] = {WHOLE: []}
    for written in writer.write(WHOLE, [samples[index] for index in indices], indices, 0, report):
        found[WHOLE].append(written)
        if not writer.each:
            yield from _entries(samples, each, {WHOLE: [written]})
    there = [written.index for written in found[WHOLE]]
    if not writer.each or not there:
        return
    for part in writer.each:
        found[part] = list(writer.write(part, [samples[index] for index in there], there, 0, report))
    if not requested():  # else some may be lacking: these are tried again
        yield from _entries(samples, each, found)


def _read(files: Sequence[Path]) -> Iterator[Written]:
    """What ``_write_part`` has written into parts."""
    for file in files:
        if not file.exists():
            raise FileNotFoundError(file)
        if not file.stat().st_size:
            continue
        for _, row in read_objects(file, "part of a reference pool"):
            window = None
            if "window" in row:
                times = as_list(row["window"], f"{file}: window")
                start, end = (float(as_number(time, f"{file}: window")) for time in times)
                window = TimeWindow(start=start, end=end)
            texts = string_list(row["references"], "part of a reference pool", "references")
            yield Written(index=as_whole(row["place"], f"{file}: place"), references=texts, window=window)
