"""An event loop in a thread of its own: what synchronous code keeps many requests under way with."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_CANCEL_AGAIN_S = 1.0
_STILL_S = 60.0


class LoopThread:
    """Runs coroutines until it is closed.

    name: of the thread, and of what is said to be closed. end_s: how long closing waits for anything that does not
    end; it then raises TimeoutError with the name of that.
    """

    def __init__(self, name: str, *, end_s: float = 60.0) -> None:
        self._name, self._end_s = name, end_s
        self._loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(thread_name_prefix=f"{name}, worker")
        self._loop.set_default_executor(self._workers)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self.closed = False
        self._thread.start()

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Begins ``work``; may be called from any other thread. Raises RuntimeError once closed."""
        if self.closed:
            work.close()
            raise RuntimeError(f"the {self._name} is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, call: Callable[[], object]) -> None:
        """Has the loop call ``call``, after what it was given before; may be called from any other thread. Raises
        RuntimeError once closed."""
        if self.closed:
            raise RuntimeError(f"the {self._name} is closed")
        self._loop.call_soon_threadsafe(call)

    def run(self, work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
        """The result of ``work``. Raises what it raises, and TimeoutError."""
        return self.submit(work).result(timeout_s)

    def close(self, last: Callable[[], Awaitable[object]] | None = None) -> None:
        """Cancels what is under way, awaits ``last`` and ends the threads. May be called again.

        Raises what ``last`` raises, and TimeoutError if something does not end within ``end_s``: a close must not be
        what a run hangs in.
        """
        if self.closed:
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self.closed = True
        try:
            # Each of its two parts has its own limit; well beyond both the loop itself stands still.
            limit_s = 2 * self._end_s + _STILL_S
            try:
                ending.result(limit_s)
            except TimeoutError as error:
                if ending.done():
                    raise
                raise TimeoutError(
                    f"the {self._name} does not end: its event loop has not moved for {limit_s:g} s"
                ) from error
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(self._end_s)
            if not self._thread.is_alive():
                self._loop.close()
            self._end_workers()

    def _end_workers(self) -> None:
        """Waits for the threads of ``asyncio.to_thread``; shutdown itself knows no limit."""
        ending = threading.Thread(target=self._workers.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        ending.start()
        ending.join(self._end_s)
        if ending.is_alive():
            raise TimeoutError(
                f"the {self._name} does not end: a worker thread is busy after {self._end_s:g} s"
            )

    async def _end(self, last: Callable[[], Awaitable[object]] | None) -> None:
        await self._cancel_all()
        if last is not None:
            try:
                async with asyncio.timeout(self._end_s) as limit:
                    await last()
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimeoutError(
                    f"the {self._name} does not end: its connections are not closed after {self._end_s:g} s"
                ) from error

    async def _cancel_all(self) -> None:
        """Again and again: what catches its cancellation once, as code under a timeout may, is not waited for."""
        give_up = time.monotonic() + self._end_s
        while pending := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=min(_CANCEL_AGAIN_S, self._end_s))
            if time.monotonic() > give_up:
                left = ", ".join(sorted(repr(task.get_coro()) for task in pending if not task.done()))
                raise TimeoutError(
                    f"the {self._name} does not end: cancelled for {self._end_s:g} s and still under way: {left}"
                )
