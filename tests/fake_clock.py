"""A clock that the test holds: hours of waiting pass at once, and on a busy machine no more than on another."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from vcap_jax.system.clock import Clock

_BEGINNING = 1000.0
"""What it shows at first."""
_TURNS = 200
"""Of the event loop without anything new, after which everything is taken to wait."""


@dataclass(order=True)
class _Moment:
    """Something that happens at a time, in the order in which it was asked for; act: None once nobody waits for it."""

    time: float
    count: int
    act: Callable[[], object] | None = field(compare=False)

    def over(self) -> None:
        self.act = None


class FakeClock(Clock):
    """Jumps to the next moment that somebody waits for whenever everything waits.

    It stands still while anybody is inside a ``deadline``, which is to say while a request is out: how long an answer
    takes is then not for the machine to decide. A server that is never to answer is told of by ``advance``. For one
    event loop; what threads do is not seen, so nothing that is measured should wait for one. An error in what was to
    happen at a moment cancels all tasks of the loop, which would else wait for ever.

    slept: all that was asked of ``sleep``.
    """

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._now = _BEGINNING
        self._moments: list[_Moment] = []
        self._count = self._out = self._activity = 0
        self._watching = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        woken = asyncio.Event()
        moment = self._at(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            moment.over()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        try:
            async with self._limit(seconds):
                await event.wait()
        except TimeoutError:
            pass
        return event.is_set()

    @asynccontextmanager
    async def deadline(self, seconds: float) -> AsyncIterator[None]:  # type: ignore[override]
        self._out += 1
        try:
            async with self._limit(seconds):
                yield
        finally:
            self._out -= 1
            self._watch()

    @asynccontextmanager
    async def _limit(self, seconds: float) -> AsyncIterator[None]:
        limit = asyncio.timeout(None)
        moment = self._at(seconds, lambda: limit.reschedule(0.0))
        try:
            async with limit:
                try:
                    yield
                finally:
                    moment.over()
        finally:
            moment.over()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Has ``act`` called when so many seconds have passed; before the loop runs, or inside it."""
        self._at(seconds, act)

    def advance(self, seconds: float) -> None:
        """So many seconds pass now, whoever is at work. To be called inside the loop."""
        self._until(self._now + seconds)

    def advance_threadsafe(self, seconds: float) -> None:
        """``advance`` for another thread than the loop's, such as a server's."""
        assert self._loop is not None, "nobody has looked at the clock yet"
        self._loop.call_soon_threadsafe(self.advance, seconds)

    def after_threadsafe(self, seconds: float, act: Callable[[], object]) -> None:
        """``after`` for another thread than the loop's."""
        assert self._loop is not None, "nobody has looked at the clock yet"
        self._loop.call_soon_threadsafe(self.after, seconds, act)

    # -- moments ---------------------------------------------------------------------------------------------

    def _at(self, seconds: float, act: Callable[[], object]) -> _Moment:
        self._count += 1
        moment = _Moment(self._now + seconds, self._count, act)
        heapq.heappush(self._moments, moment)
        self._watch()
        return moment

    def _next(self) -> _Moment | None:
        """The next that somebody still waits for."""
        while self._moments and self._moments[0].act is None:
            heapq.heappop(self._moments)
        return self._moments[0] if self._moments else None

    def _until(self, time: float) -> None:
        while (moment := self._next()) is not None and moment.time <= time:
            heapq.heappop(self._moments)
            self._now = moment.time
            assert moment.act is not None
            moment.act()
        self._now = max(self._now, time)
        self._watch()

    def _watch(self) -> None:
        self._activity += 1
        if not self._watching:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # a moment that was set before the loop ran: the first wait inside it looks at it too
            self._watching = True
            self._loop.call_soon(self._turn, self._activity, 0)

    def _turn(self, activity: int, turns: int) -> None:
        """Looks on, turn by turn of the loop."""
        moment = self._next()
        if self._out or moment is None:
            self._watching = False  # whoever comes back, or begins to wait, has it watched again
        elif activity != self._activity:
            asyncio.get_running_loop().call_soon(self._turn, self._activity, 0)
        elif turns < _TURNS:
            asyncio.get_running_loop().call_soon(self._turn, activity, turns + 1)
        else:
            self._watching = False
            try:
                self._until(moment.time)
            except BaseException as error:
                for task in asyncio.all_tasks():
                    task.cancel(
                        f"what was to happen after {moment.time - _BEGINNING:g} s has failed: {error!r}"
                    )
                raise
