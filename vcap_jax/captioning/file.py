"""The caption file: a JSON line for each input, in order, written resumably by one process or several.

    {"id": "photo.jpg", "image": "photo.jpg", "captions": ["..."], "truncated": [false], "tokens": [57]}
    {"id": "broken.png", "image": "broken.png", "failure": "broken.png: not a readable image ..."}

Where only some of the captions of an input came, its row has them and a failure, and the input counts as failed.

Rows are appended to a part as captions come, in whatever order that is, and each is safe once it is written. Whichever
process is last joins the parts in the order of the inputs. ``FILE.about.json`` says who wrote it and how; a file of
another captioner, other settings or other inputs is never gone on with.

To try again what failed, the joined file is put aside (``FILE.earlier``): its captions are taken from there, its
failures are not. So a file that has its name is complete, and an interrupted second attempt is gone on with like any
other.
"""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from vcap_jax.captioning.caption import Caption
from vcap_jax.captioning.captioner import Captioner
from vcap_jax.captioning.engines import Drawing
from vcap_jax.captioning.inputs import Counted, Inputs, identified
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
    whole_rows,
)
from vcap_jax.data.manifest import Sample
from vcap_jax.system.digests import number_of
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import write_json, write_through
from vcap_jax.system.json_values import JsonDict, JsonObject, as_whole, parse_json, read_json_object
from vcap_jax.system.shutdown import requested

_NAME = "captions"


class CaptionFileError(VCapError, RuntimeError):
    """A caption file that cannot be written where it was asked for; the message says what to do instead."""


@dataclass(frozen=True, kw_only=True)
class CaptionJob:
    """What is to be captioned, and how. shard: this process's share of the inputs."""

    inputs: Inputs
    counted: Counted
    drawing: Drawing
    seed: int = 0
    shard: Shard = field(default_factory=Shard)


def write_caption_file(
    path: Path,
    captioner: Captioner,
    job: CaptionJob,
    *,
    retry_failed: bool = False,
    on_caption: Callable[[Caption], None] | None = None,
    on_progress: Callable[[str, int, int, int], None] | None = None,
) -> bool:
    """Writes the file, or this process's part of it; goes on where an interrupted attempt left off.

    retry_failed: ask again for the inputs of this process's share that have failed in an earlier attempt. Captions that
    are there stay as they are.
    on_caption: told of every caption as it comes. on_progress: told (what, done, total, done by this call).
    Returns whether the whole file is there; False while parts of other processes are missing. A signal ends it, with
    Stopped, once the captions in work are written.
    Raises CaptionFileError if another caption file, or parts of another, lie at ``path``, if another process is writing
    the part, and if inputs were added or removed meanwhile.
    """
    about = as_read(
        {
            **captioner.described(job.drawing, job.counted.total),
            "seed": job.seed,
            "inputs": job.counted.total,
            "asked": job.counted.digest,
            "files": job.counted.files,
        }
    )
    parts, earlier = parts_folder(path), earlier_file(path)
    if path.exists():
        _check_existing(path, about, path, job.inputs)
        if not (retry_failed and any(caption.failure is not None for caption in read_caption_file(path))):
            return True
        # Of several processes the first does it. Not among the parts: whoever has just joined them may still be at
        # removing them.
        with suppress(FileNotFoundError):
            path.rename(earlier)
    elif earlier.exists():
        _check_existing(earlier, about, path, job.inputs)

    check_plan(parts, about, what="caption file", error=CaptionFileError)
    part = part_file(parts, _NAME, job.shard)
    if retry_failed and part.exists() and any("failure" in row for row in whole_rows(part)):
        part.rename(partial_file(part))
    if not part.exists():
        found = read_caption_file(earlier) if earlier.exists() else iter(())
        captioned = (caption for caption in found if caption.failure is None)
        with held(part, CaptionFileError):
            _write_part(part, captioner, job, captioned, retry_failed, on_caption, on_progress)
    return _join(path, parts, about, job)


def about_file(path: Path) -> Path:
    """What says of a caption file who wrote it and how."""
    return path.with_name(path.name + ".about.json")


def read_caption_file(path: Path) -> Iterator[Caption]:
    """The captions of a file, in order, one at a time. Raises CaptionFileError for a line that is no JSON object, and
    JsonError for a row that is none."""
    with path.open("rb") as lines:
        for index, line in enumerate(lines):
            where = f"{path}:{index + 1}"
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise CaptionFileError(f"{where}: not a JSON object: remove the file and caption anew")
            yield Caption.of_row(row, index, where)


def _write_part(
    part: Path,
    captioner: Captioner,
    job: CaptionJob,
    captioned: Iterator[Caption],
    retry_failed: bool,
    on_caption: Callable[[Caption], None] | None,
    on_progress: Callable[[str, int, int, int], None] | None,
) -> None:
    first, last = job.shard.span(job.counted.total)
    # Eight bytes for each input: of millions only what is done is known, and which they are is read anew.
    done = array("Q", [0]) * (last - first)
    for row in whole_rows(partial_file(part)):
        # Of several rows of an input the last counts, here and when the parts are joined.
        done[_index(row, part) - first] = 0 if retry_failed and "failure" in row else _mark(row)
    if any(done):
        # Where inputs came or went while an earlier attempt was at work, those after them stood in other places.
        for index, sample in enumerate(islice(job.inputs, first, last)):
            if done[index] != _mark(Caption.failed(index, sample, "").row()):
                done[index] = 0
    before = count = 0
    found = blake2b(digest_size=16)

    def taken() -> Iterator[JsonDict]:
        for caption in captioned:
            if first <= caption.index < last and not done[caption.index - first]:
                row = caption.row()
                done[caption.index - first] = _mark(row)
                yield {"place": caption.index, **row}

    def to_do() -> Iterator[tuple[int, Sample]]:
        for index, sample in enumerate(islice(job.inputs, job.counted.total)):
            found.update(identified(sample))
            if first <= index < last and not done[index - first]:
                yield index, sample

    def rows() -> Iterator[JsonDict]:
        nonlocal before, count
        yield from taken()
        before = count = sum(mark != 0 for mark in done)
        if before == last - first:
            return
        captions = captioner.placed(to_do(), drawing=job.drawing, seed=job.seed, total=job.counted.total)
        for caption in captions:
            row = caption.row()
            yield {"place": caption.index, **row}
            count += 1
            done[caption.index - first] = _mark(row)
            if on_caption is not None:
                on_caption(caption)
            if on_progress is not None:
                on_progress("captions", count, last - first, count - before)
        if count < last - first and not requested():
            raise _changed(last - first - count)
        if not requested() and found.hexdigest() != job.counted.digest:
            raise CaptionFileError(
                f"inputs were added, renamed or removed while {part} was written, so that others have moved: take away "
                f"what was added and give the same command again, or remove {part.parent} and begin anew"
            )

    grow(part, rows(), stopped=lambda: f"stopped with {count} of {last - first} inputs captioned")


def _join(path: Path, parts: Path, about: JsonDict, job: CaptionJob) -> bool:
    files = [
        part_file(parts, _NAME, Shard(index=index, count=job.shard.count)) for index in range(job.shard.count)
    ]
    try:
        if not all(file.exists() for file in files):
            # Another process may have joined and tidied up between our part and this look.
            return path.exists()
        offsets = [_offsets(file, Shard(index=i, count=len(files)), job) for i, file in enumerate(files)]
        write_json(about_file(path), about)

        def write(temporary: Path) -> None:
            with temporary.open("wb") as out:
                for file, begins in zip(files, offsets, strict=True):
                    with file.open("rb") as rows:
                        for offset in begins:
                            rows.seek(offset)
                            row = json.loads(rows.readline())
                            del row["place"]
                            out.write((json.dumps(row, ensure_ascii=False) + "\n").encode())

        # Its captions are in the parts. Not once the new file has its name: a third attempt might have put that aside.
        earlier_file(path).unlink(missing_ok=True)
        write_through(path, write)
    except FileNotFoundError:
        # As above, in the middle of reading; or another process has opened its part again.
        if path.exists():
            return True
        if all(file.exists() for file in files):
            raise
        return False
    shutil.rmtree(parts, ignore_errors=True)
    return True


def _offsets(part: Path, shard: Shard, job: CaptionJob) -> array[int]:
    """Where the row of each of the share's inputs begins: eight bytes for each, whatever the captions' length."""
    first, last = shard.span(job.counted.total)
    offsets = array("q", [-1]) * (last - first)
    with part.open("rb") as rows:
        begin = 0
        for line in rows:
            offsets[_index(json.loads(line), part) - first] = begin
            begin += len(line)
    if missing := sum(offset < 0 for offset in offsets):
        raise _changed(missing)
    return offsets


def _mark(row: JsonObject) -> int:
    """Of an input that is done, never 0: by which it is known again, its id and its files."""
    known = json.dumps([row.get(key) for key in ("id", "image", "images", "video")])
    return number_of(known) or 1


def _index(row: JsonDict, part: Path) -> int:
    return as_whole(row.get("place"), f"{part}: place")


def _check_existing(path: Path, about: JsonDict, joined: Path, inputs: Inputs) -> None:
    """joined: the file's name when it is complete, beside which its description lies."""
    beside = about_file(joined)
    if not beside.is_file():
        raise CaptionFileError(f"{path} is there already, and not of this command: give another --out")
    noted = read_json_object(beside)
    theirs = {**noted, "files": about["files"]}
    if theirs != about:
        raise CaptionFileError(
            f"{path} is there already, by {theirs.get('writer')}, and is another one ({differing(theirs, about)} "
            "differ): give another --out, or remove it to caption anew"
        )
    if noted.get("files") == about["files"]:
        return
    # Where there is no caption, a manifest's path may have been mended.
    for caption, sample in zip(read_caption_file(path), inputs, strict=False):
        if caption.texts and caption.files != sample.files:
            raise CaptionFileError(
                f"{path} is there already, and its captions of {caption.id} are of {_named(caption.files)}, not of "
                f"{_named(sample.files)}: name the inputs as before, give another --out, or remove it to caption anew"
            )


def _named(files: Iterable[Path]) -> str:
    return ", ".join(map(str, files))


def _changed(missing: int) -> CaptionFileError:
    return CaptionFileError(
        f"{missing} inputs are not there any more: files were removed or renamed since the captions were begun. Put "
        "them back, or remove the parts and begin anew"
    )
