"""A second judge that is asked about a share of the captions and never enters the reward.

A policy can learn the weaknesses of the one judge it is trained by; another one, which it is not, shows that as falling
agreement. Which captions it sees follows from seed, step, sample and place in the group alone. Nobody waits for it: a
row of metrics reports what has come back since the row before, so its numbers depend on time, and whatever goes wrong
with it is counted and otherwise without effect.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from statistics import fmean

import numpy as np

from vcap_jax.report.metrics import Row
from vcap_jax.reward.aggregation import comparable
from vcap_jax.reward.config import RewardConfig, SecondJudgeConfig
from vcap_jax.reward.errors import FamilyError
from vcap_jax.reward.family import load_family
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.role import Role
from vcap_jax.reward.session import RewardSession
from vcap_jax.system.clock import Clock
from vcap_jax.system.closing import Closing
from vcap_jax.system.digests import number_of

PREFIX = "second_judge/"
SECOND = Role(who="the second judge", settings="second_judge.judge")
_LEAST_FOR_CORRELATION = 3
_log = logging.getLogger(__name__)


def is_held_out(share: float, *, seed: int, step: int, sample_id: str, candidate: int) -> bool:
    """Whether the second judge sees this candidate; the same on every machine."""
    return number_of(f"second judge/{seed}/{step}/{sample_id}/{candidate}") < share * 2.0**64


def agreement(pairs: Sequence[tuple[CandidateScore, CandidateScore]]) -> Row:
    """How two judges agree about candidates that both have scored.

    ``difference_...``: mean absolute differences, of each component that both have and of the reward. ``pearson``,
    ``spearman``: of the rewards, left out below three candidates and where one judge gives them all the same.
    """
    both = [(a, b) for a, b in pairs if a.reward is not None and b.reward is not None]
    row: Row = {f"{PREFIX}count": len(both)}
    for name in dict.fromkeys(name for a, b in both for name in a.components if name in b.components):
        pairs_of = [(a.components, b.components) for a, b in both]
        row[f"{PREFIX}difference_{name}"] = fmean(
            abs(a[name] - b[name]) for a, b in pairs_of if name in a and name in b
        )
    if both:
        first, second = zip(
            *((comparable(a.reward or 0.0), comparable(b.reward or 0.0)) for a, b in both), strict=True
        )
        row[f"{PREFIX}difference_reward"] = fmean(abs(a - b) for a, b in zip(first, second, strict=True))
        if len(both) >= _LEAST_FOR_CORRELATION:
            for name, a, b in (("pearson", first, second), ("spearman", _ranks(first), _ranks(second))):
                if len(set(a)) > 1 and len(set(b)) > 1:
                    row[PREFIX + name] = float(np.corrcoef(a, b)[0, 1])
    return row


def _ranks(values: Sequence[float]) -> tuple[float, ...]:
    """Ranks from 0; equal values share the mean of theirs."""
    ordered = np.sort(values)
    first, end = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return tuple((first + end - 1) / 2)


def _result(future: Future[GroupScores] | None) -> GroupScores | BaseException | None:
    """What became of a future that has ended; a cancelled one is an exception like others."""
    if future is None:
        return None
    return CancelledError() if future.cancelled() else future.exception() or future.result()


class SecondJudge(Closing):
    """Asks along with a run; ``consider`` and ``metrics`` may be called from the trainer's thread, neither waits.

    references: the whole pool by sample, which the first judge's family has.
    Raises TemplateError, FamilyError and JudgeUnavailable for settings that cannot work at all.
    """

    def __init__(
        self,
        config: SecondJudgeConfig,
        reward: RewardConfig,
        *,
        seed: int,
        references: Mapping[str, Sequence[str]],
        say: Callable[[str], None] = _log.warning,
        clock: Clock | None = None,
    ) -> None:
        if not load_family(reward).asks_judge(reward):
            raise FamilyError(
                f"reward.family {reward.family!r} asks no judge, so a second one has nothing to agree with: leave out "
                "second_judge"
            )
        self._config, self._seed, self._say = config, seed, say
        self._complained = False
        self._session = RewardSession(
            reward,
            config.judge,
            seed=seed,
            references=references,
            role=SECOND,
            say=self._complain,
            clock=clock,
        )
        self._lock = threading.Lock()
        self._pairs: list[tuple[CandidateScore, CandidateScore]] = []
        self._pending = self._failed = self._passed_over = 0

    def consider(self, group: GroupForReward, first: Future[GroupScores]) -> None:
        """Ask about the held-out captions of a group that the first judge has just been given.

        first: what becomes of the group with the first judge.
        """
        chosen = [
            index
            for index in range(len(group.captions))
            if is_held_out(
                self._config.share,
                seed=self._seed,
                step=group.step,
                sample_id=group.sample_id,
                candidate=index,
            )
        ]
        if not chosen:
            return
        with self._lock:
            if self._pending + len(chosen) > self._config.max_pending:
                self._passed_over += len(chosen)
                return
            self._pending += len(chosen)
        try:
            asked = replace(group, captions=tuple(group.captions[index] for index in chosen))
            # Of a choice of a step's candidates; the store, which may be the run's own, has what all of them earned.
            second = self._session.submit(asked, trained_on=False)
        except Exception as error:  # nothing about the second judge may reach the run
            self._complain(f"{type(error).__name__}: {error}")
            self._done(chosen, None, None)
            return
        second.add_done_callback(
            lambda ended: first.add_done_callback(lambda one: self._done(chosen, one, ended))
        )

    def _done(
        self, chosen: list[int], first: Future[GroupScores] | None, second: Future[GroupScores] | None
    ) -> None:
        pairs: list[tuple[CandidateScore, CandidateScore]] = []
        ours, theirs = _result(first), _result(second)
        if isinstance(theirs, BaseException):
            self._complain(f"{type(theirs).__name__}: {theirs}")
        elif isinstance(ours, GroupScores) and theirs is not None:
            pairs = [(ours.candidates[i], other) for i, other in zip(chosen, theirs.candidates, strict=True)]
        scored = [(a, b) for a, b in pairs if a.reward is not None and b.reward is not None]
        with self._lock:
            self._pending -= len(chosen)
            self._pairs += scored
            self._failed += len(chosen) - len(scored)

    def metrics(self) -> Row:
        """What has come back since the last call: agreement, failures, captions passed over and still waited for."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            counts: Row = {
                f"{PREFIX}failed": self._failed,
                f"{PREFIX}passed_over": self._passed_over,
                f"{PREFIX}pending": self._pending,
            }
            self._failed = self._passed_over = 0
        return agreement(pairs) | counts

    def close(self) -> None:
        """Gives up what is still waited for."""
        self._complained = True  # what is cancelled now is no news
        self._session.close()

    def _complain(self, text: str) -> None:
        """Once; the counts in the metrics tell the rest."""
        if not self._complained:
            self._complained = True
            self._say(f"second judge: {text} (the run goes on without it; second_judge/failed counts)")
