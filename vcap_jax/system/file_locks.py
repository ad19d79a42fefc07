"""Whether this process is the only one at work on a file or folder."""

from __future__ import annotations

import fcntl
from typing import IO


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
