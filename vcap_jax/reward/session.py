"""The reward for a synchronous trainer: captions are scored in the background while others still decode.

::

    with RewardSession(config.reward, config.judge, seed=config.seed) as session:
        session.wait_until_ready()
        opened = session.open(prompt, size=8)
        for place, caption in captions_as_they_end:
            opened.end(place, caption)
        scores = opened.scores.result()

A family gets every caption as soon as it has ended, or the group when its last one has: its type says which
(``reward.family``). An event loop runs in a thread of its own and holds the client. Every group whose captions have
ended is scored in bounded time, since each of its requests has a deadline and a limited number of tries, and an outage
of the judge a limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import JudgeConfig, RewardConfig
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.family import FamilyTools, load_family, made_family, scores_by
from vcap_jax.reward.group import GroupForReward, GroupPrompt, GroupScores
from vcap_jax.reward.open_group import OpenGroup
from vcap_jax.reward.role import JUDGE, Role
from vcap_jax.reward.statistics import JudgeStatistics
from vcap_jax.reward.store import JudgementStore, StoredCandidate
from vcap_jax.system.clock import Clock
from vcap_jax.system.closing import Closing
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.turns import Turns, ending

_log = logging.getLogger(__name__)


class GroupInWork:
    """A group that is scored while its captions end; for the thread that makes them.

    scores: see ``RewardSession.submit``.
    """

    def __init__(self, loop: LoopThread, group: OpenGroup, scores: Future[GroupScores]) -> None:
        self._loop, self._group, self.scores = loop, group, scores

    def end(self, place: int, caption: str) -> None:
        """Tells the caption at ``place`` of the group, each once."""
        self._loop.soon(partial(self._group.end, place, caption))


class RewardSession(Closing):
    """Runs the reward family that ``reward.family`` names; ``submit`` and ``open`` may be called from any thread.

    judge: its endpoints, asked only if the family asks a judge. What every candidate earned goes into the store that
    ``judge.store`` names. seed: of the family's random choices. references: the whole pool by sample, for families
    that look at all of it. role: what messages call the judge. say: where those about waiting for it go, by default the
    log. clock: all time that the judge is waited for. turns: on the devices that the judge shares, where it does
    (``judge.sleep_mode``).

    Raises FamilyError, JudgeUnavailable, StoreError and the family's own kinds of ValueError (TemplateError) for
    settings that cannot work.
    """

    def __init__(
        self,
        reward: RewardConfig,
        judge: JudgeConfig,
        *,
        seed: int,
        references: Mapping[str, Sequence[str]] | None = None,
        role: Role = JUDGE,
        say: Callable[[str], None] = _log.warning,
        clock: Clock | None = None,
        turns: Turns | None = None,
    ) -> None:
        family = load_family(reward)
        self._name, self._judge = reward.family, judge
        self._turns = Turns() if turns is None else turns
        self._store: JudgementStore | None = None
        self._client: JudgeClient | None = None
        try:
            # Everything that can be wrong with the settings is raised here, before a thread runs.
            if family.asks_judge(reward):
                self._client = JudgeClient(judge, role=role, say=say, clock=clock, turns=True)
            self._store = None if judge.store is None else JudgementStore(judge.store)
            tools = FamilyTools(
                seed=seed,
                judge=self._client,
                judge_config=judge,
                store=self._store,
                references={} if references is None else references,
            )
            self._family = made_family(reward, tools)
        except BaseException:
            if self._store is not None:
                self._store.close()
            raise
        self._loop = LoopThread("reward session")
        if self._client is not None:
            self._loop.run(self._client.__aenter__())

    def wait_until_ready(self, timeout_s: float | None = None, *, every: bool = True) -> str | None:
        """Block until the judge answers (``judge.ready_timeout_s`` by default); its model, None without a judge.
        every: at all of its addresses, or at one of them. Raises JudgeUnavailable.
        """
        if self._client is None:
            return None
        timeout_s = self._judge.ready_timeout_s if timeout_s is None else timeout_s
        with self.turn():
            return self._loop.run(self._client.wait_until_ready(timeout_s, every=every))

    @property
    def places(self) -> int:
        """Requests that may be at the judge at once, 0 without one."""
        return 0 if self._client is None else self._judge.concurrency * len(self._judge.urls)

    @property
    def asks_judge(self) -> bool:
        """Whether the family asks one."""
        return self._client is not None

    @property
    def takes_turns(self) -> bool:
        """Whether the judge answers in its turn only: what it is asked before waits for that."""
        return self._client is not None and self._judge.sleep_mode

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The judge's turn on the devices, for a judge that shares them; for any other there is nothing to do.

        Whoever begins it waits inside for what was submitted. Raises JudgeUnavailable for a server that has no sleep
        mode or does not fall asleep; one that is not there is waited for as always.
        """
        if self._client is None or not self.takes_turns:
            yield
            return
        client = self._client
        with (
            self._turns.of(f"the judge at {', '.join(self._judge.urls)}"),
            ending(lambda: self._loop.run(client.end_turn()), JudgeUnavailable),
        ):
            self._loop.run(client.begin_turn())
            yield

    def submit(self, group: GroupForReward, *, trained_on: bool = True) -> Future[GroupScores]:
        """Begin to score ``group``; a judgement that fails is part of the result.

        trained_on: whether the store keeps what the candidates earned, as a step's; answers it keeps in any case.

        The future raises for mistakes in the group itself, and what must end the run: JudgeOutage after too
        long without a judge, MediaMismatch, other kinds of JudgeUnavailable, StoreError, FamilyError (a family of
        the user's own that raised something, or gave no scores).
        """
        return self._loop.submit(self._score(OpenGroup.ended(group), trained_on))

    def open(self, prompt: GroupPrompt, size: int) -> GroupInWork:
        """Begin to score a group of a step whose ``size`` captions are told as they end; see ``submit``."""
        group = OpenGroup(prompt, size)
        return GroupInWork(self._loop, group, self._loop.submit(self._score(group, trained_on=True)))

    @property
    def unreachable(self) -> str | None:
        """Which judge none of whose endpoints answers now, in words; None while one does, or without a judge."""
        return None if self._client is None else self._client.unreachable

    def statistics(self) -> JudgeStatistics:
        """Totals since the start; all 0 without a judge."""
        return JudgeStatistics() if self._client is None else self._client.statistics()

    def close(self) -> None:
        """Cancel what is under way, close the connections and end the thread. May be called again."""
        self._loop.close(None if self._client is None else self._client.__aexit__)
        if self._store is not None:
            self._store.close()

    async def _score(self, opened: OpenGroup, trained_on: bool) -> GroupScores:
        scores = await scores_by(self._family, self._name, opened)
        if self._store is not None and trained_on:
            group = await opened.whole()
            written = self._store.put_group(
                [
                    StoredCandidate(
                        step=group.step,
                        group=group.index,
                        sample_id=group.sample_id,
                        index=index,
                        caption=caption,
                        family=self._name,
                        components=candidate.components,
                        verdicts=candidate.keys,
                        reward=candidate.reward,
                    )
                    for index, (caption, candidate) in enumerate(
                        zip(group.captions, scores.candidates, strict=True)
                    )
                ]
            )
            await asyncio.wrap_future(written)
        return scores
