"""Whoever waits says so: for whom, since when, what was last seen, and when it gives up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from vcap_jax.system.clock import Clock

EVERY_S = 10.0
"""Seconds between two messages about one wait."""


class Waiting:
    """One wait, which begins now, or began at ``since``.

    whom: who is waited for, in words. say: where the messages go. limit_s: when it is given up, None for never;
    setting: the configuration's name of that limit. first_s: seconds before the first message. now: monotonic seconds.
    """

    def __init__(
        self,
        whom: str,
        say: Callable[[str], None],
        *,
        limit_s: float | None = None,
        setting: str = "",
        first_s: float = EVERY_S,
        since: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._whom, self._say, self._now = whom, say, now
        self._end = "" if limit_s is None else f"; giving up after {limit_s:g} s ({setting})"
        self._first_s = first_s
        self.begin(since)

    def begin(self, since: float | None = None) -> None:
        """Whoever was waited for has come; what is waited for next is waited for from now on."""
        self._began = self._now() if since is None else since
        self._next = self._began + self._first_s

    @property
    def until_next_s(self) -> float:
        """Seconds until there is something to say, at least a moment."""
        return max(0.01, self._next - self._now())

    def tell(self, seen: str) -> None:
        """Says what is waited for if it is time to. seen: of it, last. May be called as often as one likes."""
        now = self._now()
        if now >= self._next:
            self._next = now + EVERY_S
            self._say(f"waiting for {self._whom} for {now - self._began:.0f} s: {seen}{self._end}")


@asynccontextmanager
async def telling(waiting: Waiting, seen: Callable[[], str], clock: Clock) -> AsyncIterator[None]:
    """Has ``waiting`` told for as long as the block runs. seen: what is to be said of it at a moment."""

    async def tell() -> None:
        while True:
            await clock.sleep(waiting.until_next_s)
            waiting.tell(seen())

    teller = asyncio.create_task(tell())
    try:
        yield
    finally:
        teller.cancel()


@contextmanager
def told_beside(waiting: Waiting, seen: str) -> Iterator[None]:
    """``telling`` for a block that itself comes to nothing else: a thread says it."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(waiting.until_next_s):
            waiting.tell(seen)

    thread = threading.Thread(target=tell, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
