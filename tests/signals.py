"""Signals as a terminal sends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vcap_jax.system.shutdown import requested


@contextmanager
def in_foreground() -> Iterator[None]:
    """What is started inside listens to Ctrl-C, also where the tests themselves run in the background: a shell has
    those ignore it, and what they start would too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ask_to_stop(number: signal.Signals = signal.SIGTERM) -> None:
    """Sends this process a signal and returns once it has been noted; raises what its handler raises."""
    os.kill(os.getpid(), number)
    while not requested():
        time.sleep(0.01)
