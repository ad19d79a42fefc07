"""Folders in which no other user of the machine can put something in the place of one's own files.

What is loaded from a file by its name alone, such as compiled code or the weights of a step, must lie in one. Root and
the members of a folder's group are trusted.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_OVERFLOW, _MAP = Path("/proc/sys/kernel/overflowuid"), Path("/proc/self/uid_map")


class ExposedFolder(OSError):
    """Other users could exchange what lies in a folder; the message names it."""


def private_folder(root: Path, prefix: str) -> Path:
    """Makes a new folder below ``root`` that this user alone can enter; its name begins with ``prefix``.

    Raises ExposedFolder if another user could exchange it, and other OSErrors if it cannot be made.
    """
    make_folder(root)
    folder = Path(tempfile.mkdtemp(dir=root, prefix=prefix))
    made = folder.lstat()
    if made.st_uid != os.geteuid() or stat.S_IMODE(made.st_mode) & 0o077:
        # Storage that knows no owners or modes, as some shares of a network.
        folder.rmdir()
        raise ExposedFolder(f"{root} keeps no folder for its user alone")
    return folder


def make_folder(folder: Path) -> None:
    """Makes ``folder`` for this user alone unless it is there.

    Raises ExposedFolder if another user could exchange what is put into it: it or a folder above it is his or open to
    all, or a link on the way to it is his. Other OSErrors if it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lexical = folder.absolute()
    links = [part for part in (lexical, *lexical.parents) if part.is_symlink()]
    for link in links:
        if not _trusted(link.lstat()):
            raise ExposedFolder(f"{link} is a link of another user")
    for place in (lexical.resolve(), *(link.parent.resolve() for link in links)):
        for part in (place, *place.parents):
            found = part.stat()
            if not (_trusted(found) or _unmapped(found.st_uid)):
                raise ExposedFolder(f"{part} belongs to another user")
            # With the sticky bit, as /tmp and /dev/shm have it, others cannot rename or remove what is mine.
            if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
                raise ExposedFolder(f"every user can change {part}")


def is_own_file(path: Path) -> bool:
    """Whether an ordinary file lies at ``path``, no link, which no other user has put there or can change."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (
        stat.S_ISREG(found.st_mode) and _trusted(found) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _unmapped(owner: int) -> bool:
    """Whether that is what root's folders look like here: in a container that knows this user alone (Apptainer's, say)
    whoever is not in its map appears as one and the same owner."""
    try:
        if owner != int(_OVERFLOW.read_text()):
            return False
        spans = [tuple(map(int, line.split())) for line in _MAP.read_text().splitlines()]
    except (OSError, ValueError):
        return False
    return not any(first <= owner < first + count for first, _, count in spans)


def _trusted(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())
