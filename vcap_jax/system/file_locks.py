"""Whether this process is the only one at work on a file or folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from vcap_jax.system.errors import VCapError

LOCK = ".lock"
"""In a folder that one process has at a time."""


def alone(file: IO[str] | IO[bytes]) -> bool:
    """Takes the lock of an open file, which ends when the file is closed; False if another process has it.

    Where the file system knows no locks nobody ever has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def free(path: Path) -> bool:
    """Whether a file that a process takes for itself (``alone``) is nobody's now. False also where that cannot be told:
    there is no such file, it is a link or cannot be read, the file system knows no locks.

    It is looked at by a lock of a moment, which others that look share: whoever takes the file should try more than
    once."""
    return _looked_at(path) is None


def taken(path: Path) -> bool:
    """Whether a process has a file or folder for itself (``alone``). False also where that cannot be told, as of
    ``free``."""
    return isinstance(_looked_at(path), BlockingIOError)


def _looked_at(path: Path) -> OSError | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(file)
    except OSError as error:
        return error
    return None


@contextmanager
def only_one(folder: Path, error: type[VCapError], remedy: str, *, inherited: bool = False) -> Iterator[None]:
    """Holds a folder, which is made where it is not there, for this process; the lock ends with it, however it ends.

    remedy: what else one can do than wait. inherited: processes that it starts with its open files hold the folder as
    well, and longer than it if they end later. Raises ``error`` where another process has the folder, and names that
    one. A folder that cannot be written to, whose files may well be read, is nobody's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        file = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError as refused:
        if refused.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        yield
        return
    with file:
        os.set_inheritable(file.fileno(), inherited)
        if not alone(file):
            file.seek(0)
            who = file.read(200).strip()
            raise error(
                f"another process{who and f' ({who})'} is at work in {folder}: wait until it has ended, or {remedy}"
            )
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


@contextmanager
def waited_for(path: Path) -> Iterator[None]:
    """Holds a file, which is made where it is not there, for whoever is inside, and waits as long as another is. Where
    the file system knows no locks nobody waits."""
    with path.open("ab") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
