"""Telling a file that is not there from storage that does not answer."""

from __future__ import annotations

import errno
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from vcap_jax.data.errors import MediaError, StorageError
from vcap_jax.data.manifest import Sample
from vcap_jax.system.files import where_sought

S = TypeVar("S")
T = TypeVar("T")

_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Between the tries to read what storage does not give."""

_BLOCK = 1 << 20
"""Bytes that are read at a time where nobody wants them."""

_AWAY = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ESHUTDOWN,  # Lustre, of a client that its servers have put out
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""What file systems of a network say when they lost their server, and what a system short of files says."""


def look(source: Path) -> None:
    """Returns where there is a regular file.

    Raises:
        MediaError: there is none, or none that this user may see.
        StorageError: its storage does not answer.
    """
    try:
        regular = stat.S_ISREG(source.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name that no file can have
        regular = False
    except OSError as error:
        raise_if_away(source, error)
        raise MediaError(
            f"{source}: {error.strerror}: let this user read it, or correct the path in the manifest"
        ) from error
    if not regular:
        what = "a folder, and no file" if source.is_dir() else f"no such file{where_sought(source)}"
        raise MediaError(f"{source}: {what}: correct the path")


def tried_again(read: Callable[[S], T], what: S) -> T:
    """``read(what)``, tried again for half a minute while the storage does not answer.

    Raises StorageError if it does not answer then, and whatever else ``read`` raises, at once.
    """
    for pause in _PAUSES_S:
        try:
            return read(what)
        except StorageError:
            time.sleep(pause)
    try:
        return read(what)
    except StorageError as error:
        raise StorageError(f"{error}, not within {sum(_PAUSES_S):.0f} s") from error


def watched(read: Callable[[Sample], T]) -> Callable[[Sample], T]:
    """``read``, which raises StorageError for a sample whose file is not there where the last one that was read is not
    there any more (``raise_if_gone``). May be called by several threads."""
    known: Path | None = None

    def read_watched(sample: Sample) -> T:
        nonlocal known
        try:
            found = read(sample)
        except MediaError:
            raise_if_gone(sample.files, known)
            raise
        if is_there(sample.files[0]):
            known = sample.files[0]
        return found

    return read_watched


def raise_if_gone(files: Sequence[Path], known: Path | None) -> None:
    """Raises StorageError where one of ``files`` is not there and ``known``, which was read before, is not there any
    more: a folder that is no longer mounted looks like that. known: None where nothing was read yet."""
    missing = next((file for file in files if not is_there(file)), None)
    if known is not None and missing is not None and not is_there(known):
        raise StorageError(
            f"{missing}: no such file, and {known}, which was read before, is not there any more: their storage is away"
        )


def is_there(source: Path) -> bool:
    """Whether there is something of that name, as far as its storage tells."""
    try:
        source.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        pass
    return True


def raise_if_empty(source: Path) -> None:
    """Raises MediaError for a file without a byte, of which decoders say that they do not know its format. For one that
    could not be read: the caller tells what else there is to tell."""
    try:
        empty = source.stat().st_size == 0
    except OSError:
        return
    if empty:
        raise MediaError(f"{source}: the file is empty: replace it or drop the row")


def raise_if_unread(source: Path) -> None:
    """Raises StorageError where the system cannot read the whole file as its storage does not answer."""
    try:
        with source.open("rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass
    except OSError as error:
        raise_if_away(source, error)


def raise_if_away(source: Path, error: Exception) -> None:
    """Raises StorageError if ``error``, of reading the file, tells of its storage."""
    if isinstance(error, OSError) and error.errno in _AWAY:
        # A damaged sector says the same every time, and a run cannot go on without the row.
        alone = " (where it says so of this file alone, remove the file: its sample is skipped then)"
        hint = alone if error.errno == errno.EIO else ""
        raise StorageError(f"{source}: {error.strerror}{hint}: its storage does not answer") from error
