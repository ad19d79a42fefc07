"""Starting processes as a terminal does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_foreground() -> Iterator[None]:
    """What is started inside listens to Ctrl-C, also where the tests themselves run in the background: a shell has
    those ignore it, and what they start would too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
