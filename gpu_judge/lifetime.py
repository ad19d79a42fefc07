"""What both backends owe whoever started them: an address in a file, and an end in time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

_PARENT_CHECK_S = 1.0


def on_signals(act: Callable[[], None]) -> None:
    """Calls ``act`` on every SIGTERM and SIGINT; needs a running event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, act)


async def watch_parent(stop: asyncio.Event, parent: int) -> None:
    """Sets ``stop`` when ``parent``, the process that started this one, is gone, even if it went before this call."""
    while os.getppid() == parent:
        await asyncio.sleep(_PARENT_CHECK_S)
    stop.set()


def write_whole(path: Path, text: str) -> None:
    """Writes a file that nobody can see half-written."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
