"""Turns of rollout servers on devices that they share with the policy (``rollout.vllm.sleep_mode``).

Outside of their turn they sleep without weights, which they are given again when the next one begins. The files of a
turn's weights are there for all of it: by then the parameters may have left the devices, and a server that is lost is
given the same files again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vcap_jax.models.family import Params
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.rollout.vllm_server import ServerLost, VllmServer
from vcap_jax.rollout.vllm_weights import WeightFiles
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.turns import Turns, ending


class ServerTurns:
    """Used by the thread that draws; ``asleep`` in ``loop``.

    turns: on the devices, of whoever shares them. weights: where a turn's are written.
    """

    def __init__(self, turns: Turns, weights: WeightFiles, loop: LoopThread) -> None:
        self._turns, self._weights, self._loop = turns, weights, loop
        self._servers: Sequence[VllmServer] = ()
        self.folder: Path | None = None
        """Of the weights of the present turn."""
        self.adapters_kept: float | None = None
        """Of these weights, see ``WrittenWeights``."""

    @contextmanager
    def written(self, params: Params, version: str) -> Iterator[None]:
        """Before a turn and as long as it lasts: its weights are in files, and ``params`` may go."""
        self.folder, self.adapters_kept = self._weights.write(params, version)
        try:
            yield
        finally:
            folder, self.folder = self.folder, None
            if folder.exists():  # whoever drew may be done after everything was closed
                self._weights.remove(folder)

    @contextmanager
    def turn(self, servers: Sequence[VllmServer], give: Callable[[Path], None]) -> Iterator[None]:
        """The turn itself, inside ``written``. give: has the servers wake up and read the weights.

        Raises RolloutError for a server that cannot wake up, or keeps its memory when the turn is over.
        """
        assert self.folder is not None
        whose = f"the rollout servers at {', '.join(server.url for server in servers)}"
        with self._turns.of(whose), ending(self._end, RolloutError):
            self._servers = servers
            give(self.folder)
            yield

    def _end(self) -> None:
        if not self._loop.closed:  # or they sleep already
            self._loop.run(self.asleep())

    async def asleep(self) -> None:
        """Has those servers sleep whose turn it is. Raises RolloutError for one that keeps its memory; one that is not
        there has none."""
        servers, self._servers = self._servers, ()
        for outcome in await asyncio.gather(*(s.sleep() for s in servers), return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, ServerLost):
                raise outcome
