"""The reward for a synchronous trainer: groups are scored in the background while others still decode.

::

    with RewardSession.witness_adjudicator(config.reward, config.judge, seed=config.seed) as session:
        session.wait_until_ready()
        futures = [session.submit(group) for group in groups_as_they_complete]
        scores = [future.result() for future in futures]

An event loop runs in a thread of its own and holds the client. Every submitted group ends in bounded time,
since each of its requests has a deadline and a limited number of tries, and an outage of the judge a limit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, Self

from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig, RewardConfig
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.reward.store import JudgementStore
from vcap_jax.reward.witness_adjudicator import GroupForReward, GroupScores, WitnessAdjudicatorReward


class GroupReward(Protocol):
    """Anything that scores groups."""

    async def score_group(self, group: GroupForReward) -> GroupScores: ...


class RewardSession:
    """Runs one reward over one judge; ``submit`` may be called from any thread.

    store: closed with the session. say: where messages about outages go, by default the log.
    """

    def __init__(
        self,
        judge: JudgeConfig,
        make_reward: Callable[[JudgeClient], GroupReward],
        *,
        store: JudgementStore | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._judge = judge
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward", daemon=True)
        self._closed, self._store = False, store
        try:
            # Everything that can be wrong with the settings is raised here, before a thread runs.
            self._client = JudgeClient(judge) if say is None else JudgeClient(judge, say=say)
            self._reward = make_reward(self._client)
        except BaseException:
            self._loop.close()
            raise
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._client.__aenter__(), self._loop).result()

    @classmethod
    def witness_adjudicator(
        cls,
        reward: RewardConfig,
        judge: JudgeConfig,
        *,
        seed: int,
        say: Callable[[str], None] | None = None,
    ) -> Self:
        """The paper's reward, with the store that ``judge.store`` names.

        Raises TemplateError, JudgeUnavailable and StoreError for settings that cannot work.
        """
        store = None if judge.store is None else JudgementStore(judge.store)
        try:
            return cls(
                judge,
                lambda client: WitnessAdjudicatorReward(reward, judge, client, seed=seed, store=store),
                store=store,
                say=say,
            )
        except BaseException:
            if store is not None:
                store.close()
            raise

    def wait_until_ready(self, timeout_s: float | None = None) -> str:
        """Block until the judge answers (``judge.ready_timeout_s`` by default); its model. Raises
        JudgeUnavailable.
        """
        timeout_s = self._judge.ready_timeout_s if timeout_s is None else timeout_s
        return asyncio.run_coroutine_threadsafe(self._client.wait_until_ready(timeout_s), self._loop).result()

    def submit(self, group: GroupForReward) -> Future[GroupScores]:
        """Begin to score ``group``; a judgement that fails is part of the result.

        The future raises for mistakes in the group itself, and what must end the run: JudgeOutage after too
        long without a judge, MediaMismatch, other kinds of JudgeUnavailable, StoreError.
        """
        if self._closed:
            raise RuntimeError("the reward session is closed")
        return asyncio.run_coroutine_threadsafe(self._reward.score_group(group), self._loop)

    def statistics(self) -> JudgeStatistics:
        """Totals since the start."""
        return self._client.statistics()

    def close(self) -> None:
        """Cancel what is under way, close the connections and end the thread. May be called again."""
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._store is not None:
            self._store.close()

    async def _shut_down(self) -> None:
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await self._client.__aexit__()
        await self._loop.shutdown_default_executor()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
