"""Time, as code that waits sees it: an object, so that a test can hold the clock in its hand."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager


class Clock:
    """The machine's. Its waits are for use inside an event loop."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Returns when ``event`` is set, or after ``seconds``; whether it is set."""
        # Not wait_for, which in Python 3.11 may swallow the cancellation of a session that is being closed.
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        return event.is_set()

    def deadline(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """A context for something that others do, such as answering a request: ended by TimeoutError after
        ``seconds``."""
        return asyncio.timeout(seconds)
