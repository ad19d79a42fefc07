"""Telling a file that is not there from storage that does not answer."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from vcap_jax.data.errors import MediaError, StorageError

_AWAY = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.EMFILE,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
        errno.ENOTCONN,
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
        raise MediaError(f"{source}: no such file: correct the path in the manifest")


def raise_if_away(source: Path, error: Exception) -> None:
    """Raises StorageError if ``error``, of reading the file, tells of its storage."""
    if isinstance(error, OSError) and error.errno in _AWAY:
        raise StorageError(f"{source}: {error.strerror}: its storage does not answer") from error
