"""Waiting for something real, a process or a thread, in a test."""

from __future__ import annotations

import time
from collections.abc import Callable

GUARD_S = 300.0
"""Guards against a hang and measures nothing: whatever a test waits for comes long before, on any machine."""


def until(
    condition: Callable[[], object],
    what: str,
    *,
    check: Callable[[], object] = lambda: None,
    seconds: float = GUARD_S,
) -> None:
    """Returns once ``condition`` holds. what: is waited for, in words. check: raises if it will never come."""
    give_up = time.monotonic() + seconds
    while not condition():
        check()
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)
