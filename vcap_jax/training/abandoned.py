"""What Orbax and TensorStore print beside the error of a checkpoint that could not be read or written.

An error ends the call that waits, and leaves others of the same checkpoint to themselves: their threads find a closed
event loop, their coroutines are never awaited, their tasks fail unseen. The interpreter and asyncio print each with a
traceback, up to thousands of lines around the one that tells what happened.
"""

from __future__ import annotations

import functools
import logging
import sys
from types import TracebackType

_THEIRS = ("orbax", "tensorstore")


@functools.cache
def drop_abandoned() -> None:
    """From now on such messages of this process are dropped, all others printed as before. What nobody can catch alone
    is looked at: an error that ends the program is printed whoever raised it. A thread may print before the call that
    waits has raised, so this is for the beginning, not for the error."""
    excepthook, unraisablehook = sys.excepthook, sys.unraisablehook

    def printed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not _of_closed_loop(error):
            excepthook(kind, error, trace)

    def ignored(told: sys.UnraisableHookArgs) -> None:
        words = f"{told.object!r} {told.exc_value!r}".lower()
        if not _of_closed_loop(told.exc_value) and not any(name in words for name in _THEIRS):
            unraisablehook(told)

    def kept(record: logging.LogRecord) -> bool:
        return not (record.levelno == logging.ERROR and any(name in record.getMessage() for name in _THEIRS))

    sys.excepthook, sys.unraisablehook = printed, ignored
    logging.getLogger("asyncio").addFilter(kept)


def _of_closed_loop(error: BaseException | None) -> bool:
    """A callback of TensorStore's, which it prints as if it had ended the program."""
    return isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
