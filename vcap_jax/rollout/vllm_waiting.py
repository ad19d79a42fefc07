"""Waiting for rollout servers: those that are still starting, those that are lost, and what is under way with them.

A run that was asked to end does not wait for a server that is gone. It ends as after a long outage, with what was done
before saved, while whoever asked it still has the patience.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import TypeVar

from vcap_jax.rollout.engine import RolloutError
from vcap_jax.rollout.vllm_server import ServerLost, VllmServer
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.shutdown import requested

T = TypeVar("T")

_LOOK_EVERY_S = 1.0


class ServerWaits:
    """``run`` and ``next`` are for the thread that draws, the others for ``loop``.

    say: where it is told that a server is waited for. limit_s: ``rollout.vllm.outage_timeout_s``.
    """

    def __init__(self, loop: LoopThread, say: Callable[[str], None], limit_s: float) -> None:
        self._loop, self._say, self._limit_s = loop, say, limit_s
        self._gone: set[str] = set()

    async def there(self, server: VllmServer) -> None:
        """Returns when it answers: whoever starts server and run at once has one that is still loading its model."""
        try:
            await server.version()
        except ServerLost as error:
            await self.back(server, error, "not there yet")

    async def back(self, server: VllmServer, error: ServerLost, what: str = "lost") -> None:
        """Returns when it answers again. what, error: how it is told."""
        self._say(
            f"{what}: {error}; waiting for it at most {self._limit_s:g} s (rollout.vllm.outage_timeout_s)"
        )
        self._gone.add(server.url)
        try:
            await server.back()
        finally:
            self._gone.discard(server.url)

    def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of ``work``. Raises RolloutError where the run was asked to end and a server is gone."""
        future = self._loop.submit(work)
        try:
            while not wait([future], timeout=_LOOK_EVERY_S).done:
                self._end_if_asked()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def next(self, arrived: queue.SimpleQueue[T]) -> T:
        """What arrives next. Raises as ``run``."""
        while True:
            try:
                return arrived.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                self._end_if_asked()

    def _end_if_asked(self) -> None:
        if self._gone and requested():
            gone = ", ".join(sorted(self._gone))
            raise RolloutError(f"the run was asked to end while the rollout server at {gone} does not answer")
