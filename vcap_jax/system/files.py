"""Files that are whole or not there: written beside their place and moved, or grown line by line and torn by a kill."""

from __future__ import annotations

import glob
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 16
"""Bytes that are read at a time in search of a line's end."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of writing a file, such as a full disk, name it: the system leaves the name of an open one out, and that
    of a temporary one tells nobody anything."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def where_sought(path: str | Path) -> str:
    """What follows "does not exist" of a path: of a relative one " in" and the working folder, from which all are
    reckoned that a user gives; of another nothing."""
    if Path(path).is_absolute():
        return ""
    try:
        return f" in {Path.cwd()}"
    except FileNotFoundError:
        return " in the working folder, which is gone"


def replace_file(path: Path, content: bytes) -> None:
    """Writes a whole file; readers, and whoever comes after a kill, see the old content or the new."""
    write_through(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, value: object) -> None:
    """Writes a whole file of JSON, as ``replace_file`` does. Raises ValueError for what is not a number."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(path, f"{text}\n".encode())


def write_through(path: Path, write: Callable[[Path], object]) -> None:
    """Lets ``write`` fill a temporary neighbour of ``path``, makes it durable and moves it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by the number of the process: in containers those of several hosts are the same.
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    try:
        with naming(path):
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself
    finally:
        os.close(directory)


def drop_torn_end(path: Path) -> None:
    """Cuts away what a kill left behind the last line end; the whole lines are not touched. Does nothing without a
    file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        whole = _line_begin(file, end)
    if whole < end:
        os.truncate(path, whole)


def last_line(path: Path) -> bytes:
    """The last line of a file, with its end; empty for an empty file. Of a long file no more is read than it needs."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(_line_begin(file, max(0, end - 1)))
        return file.read()


def _line_begin(file: BinaryIO, end: int) -> int:
    """Where the line begins that goes on, or would begin, at byte ``end``."""
    while end:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def tail(path: Path, lines: int, offset: int = 0) -> str:
    """The last lines of a log, not before byte ``offset``; of one without line ends no more than a thousand bytes for
    each. Empty for one that is not there."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(offset, path.stat().st_size - lines * 1000))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def taken_for_a_pattern(folder: Path) -> str | None:
    """What is wrong with a folder for checkpoints, in words; None if nothing is.

    Orbax looks for what each process has written by a pattern that begins with the folder's own path. Behind a [
    nothing is found and nothing joined: the checkpoint is told to be complete and cannot be read. A * or ? finds what
    lies in other folders as well, and joins it (``orbax.checkpoint`` 0.12, ``merge_ocdbt_per_process_files``).
    """
    path = str(folder.absolute())
    if glob.escape(path) == path:
        return None
    return (
        f"{path} has one of * ? [ in it, which Orbax takes for a pattern: its checkpoints could not be read, or be "
        "mixed with those of another folder"
    )
