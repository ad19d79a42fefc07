"""Errors that a user, a disk or a network can cause, and mend: their base, and what the system's own come to."""

from __future__ import annotations

import errno
import os
from typing import ClassVar


class VCapError(Exception):
    """Ends what was asked for; the message names the thing and the remedy.

    Commands print it as ``error: MESSAGE``, without a traceback (``vcap_jax.run.command_line``). Anything else that is
    raised is a defect of the program and keeps its traceback.
    """

    resumable: ClassVar[bool] = False
    """Whether the command, given again, goes on where this ended it."""


class ProblemsError(VCapError, ValueError):
    """What cannot be used for one reason or several. ``problems`` holds a sentence for each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        several = "\n  - ".join([f"{len(problems)} problems:", *problems])
        super().__init__(several if len(problems) > 1 else problems[0])


def problems_of(error: Exception) -> tuple[str, ...]:
    """A sentence for each thing that is wrong."""
    return error.problems if isinstance(error, ProblemsError) else (str(error),)


_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "give this user the right to it, or choose another",
    errno.EPERM: "give this user the right to it, or choose another",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EIO: "see what the system's log says of the disk",
}
_NO_SPACE = {os.strerror(number).lower(): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}


def system_message(error: BaseException) -> str | None:
    """What the system refused, in one line with the remedy; None if it was not the system.

    Libraries wrap the system's errors in their own, or keep nothing of them but the text: causes are followed, and
    texts looked into for a full disk.
    """
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, OSError):
            return _told(link)
    for link in chain:
        for text, number in _NO_SPACE.items():
            if text in str(link).lower():
                return f"{os.strerror(number).lower()}; {_REMEDIES[number]}"
    return None


def _told(error: OSError) -> str:
    if error.strerror is None:  # of our own making, with a message of its own
        return str(error)
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{where}{error.strerror.lower()}" + ("" if remedy is None else f"; {remedy}")


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it, the outermost first."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if link is None or any(link is known for known in found):
            continue
        found.append(link)
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(link.exceptions)
        waiting += [link.__cause__, None if link.__suppress_context__ else link.__context__]
    return found
