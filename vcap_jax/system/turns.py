"""Whose turn it is on devices that several programs share, one after the other.

The trainer has the devices whenever nobody else has. A server that shares them has its turn inside a ``with`` block,
and sleeps outside of it. Turns do not nest: two at once would need the memory of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """May be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.whose: str | None = None
        """Who has the devices, in words; None where it is the trainer."""

    @contextmanager
    def of(self, who: str) -> Iterator[None]:
        """The turn of a server. Raises RuntimeError while it is another's: a mistake of the program."""
        with self._lock:
            if self.whose is not None:
                raise RuntimeError(f"it is the turn of {self.whose}, and {who} begin another")
            self.whose = who
        try:
            yield
        finally:
            self.whose = None


@contextmanager
def ending(end: Callable[[], object], errors: type[Exception]) -> Iterator[None]:
    """Has ``end`` called when the block is over. What fails in the block is told, and not what ``end`` then raises of
    these errors."""
    failed = False
    try:
        yield
    except Exception:
        failed = True
        raise
    finally:
        try:
            end()
        except errors:
            if not failed:
                raise
