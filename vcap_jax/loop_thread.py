"""An event loop in a thread of its own: what synchronous code keeps many requests under way with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines until it is closed. name: of the thread, and of what is said to be closed."""

    def __init__(self, name: str) -> None:
        self._name, self._loop = name, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begins ``work``; may be called from any other thread. Raises RuntimeError once closed."""
        if self.closed:
            work.close()
            raise RuntimeError(f"the {self._name} is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of ``work``. Raises what it raises, and TimeoutError."""
        return self.submit(work).result(timeout_s)

    def close(self, last: Callable[[], Awaitable[object]] | None = None) -> None:
        """Cancels what is under way, awaits ``last`` and ends the thread. May be called again."""
        if self.closed:
            return
        try:
            self.run(self._end(last))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self, last: Callable[[], Awaitable[object]] | None) -> None:
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if last is not None:
            await last()
        await self._loop.shutdown_default_executor()
