"""Rewards of a run computed anew from its store: other weights, no judge, no accelerator.

For the families whose rewards are weighted verdicts: witness_adjudicator and judge. The command is
``launch/restudy.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from vcap_jax.reward.aggregation import RewardWeights, comparable, video_reward
from vcap_jax.reward.config import WEIGHTED
from vcap_jax.reward.scores import Scores, scores_of, zero_scores
from vcap_jax.reward.store import StoredCandidate, StoreError, read_candidates
from vcap_jax.reward.templates import QUALITY_KEYS


@dataclass(frozen=True, kw_only=True)
class Restudied:
    """A candidate with its reward as it was and as it would be; None where it was, or would be, masked.

    A candidate without a judgement that the new weights need is masked. without_local: there was no local pass, so
    that the weight of one, which is above 0, is of no account: images, and videos of a run that asked for none.
    """

    candidate: StoredCandidate
    reward: float | None
    without_local: bool = False


def restudy(path: str | Path, weights: RewardWeights) -> Iterator[Restudied]:
    """Every candidate of the store at ``path``, in the order of step, sample, group and place.

    Raises StoreError for a file that is no store, and for candidates of another family.
    """
    for candidate, answers in read_candidates(path):
        if candidate.family not in WEIGHTED:
            raise StoreError(
                f"{path} holds candidates of the reward family {candidate.family!r}, whose rewards have no such "
                f"weights; restudy knows {' and '.join(WEIGHTED)}"
            )
        scores = {name: None if a is None else scores_of(a) for name, a in answers.items()}
        yield Restudied(
            candidate=candidate,
            reward=_reward(candidate, scores, weights),
            without_local=weights.local > 0
            and "local" not in candidate.verdicts
            and bool(candidate.verdicts),
        )


def _reward(
    candidate: StoredCandidate, scores: dict[str, Scores | None], weights: RewardWeights
) -> float | None:
    if not candidate.verdicts:  # nothing was asked: the group's own data failed
        return None

    def verdict(name: str) -> Scores | None:
        unasked = candidate.verdicts[name] is None
        return zero_scores(QUALITY_KEYS, "unasked") if unasked else scores[name]

    with_local = "local" in candidate.verdicts and weights.local > 0
    whole, local = verdict("global"), verdict("local") if with_local else None
    if whole is None or (with_local and local is None):
        return None
    return video_reward(whole, local, weights)


@dataclass
class Coverage:
    """What rewards were computed anew from, counted as they pass by.

    candidates, of ``steps``. unanswered: without a stored answer that the weights need, so they are masked.
    without_local: see ``Restudied``.
    """

    candidates: int = 0
    unanswered: int = 0
    without_local: int = 0
    steps: set[int] = field(default_factory=set)

    def add(self, row: Restudied) -> None:
        self.candidates += 1
        self.unanswered += row.reward is None
        self.without_local += row.without_local
        self.steps.add(row.candidate.step)

    def __str__(self) -> str:
        text = f"{self.candidates} candidates of {len(self.steps)} steps"
        text += f", {self.unanswered} of them without a stored answer that they need (reward null)"
        if self.without_local:
            text += f"; {self.without_local} without a local pass, where the weight local is of no account"
        return text


@dataclass
class Effect:
    """What other weights would have changed for a policy that learns from comparisons within a group, counted as
    candidates pass by in the order of ``restudy``. Those that are masked before or after are left out.

    scored: candidates; was, now: the sums of their rewards. pairs: of candidates of one group. reversed, tied, parted:
    pairs that are ordered the other way round, that become a tie, and that were one. groups, of two candidates and
    more; other_best: those in which another candidate is the best, the one drawn first among equals.
    """

    scored: int = 0
    was: float = 0.0
    now: float = 0.0
    pairs: int = 0
    reversed: int = 0
    tied: int = 0
    parted: int = 0
    groups: int = 0
    other_best: int = 0
    _group: tuple[int, str, int] | None = None
    _rewards: list[tuple[float, float]] = field(default_factory=list)

    def add(self, row: Restudied) -> None:
        c = row.candidate
        group = (c.step, c.sample_id, c.group)
        if group != self._group:
            self.close()
            self._group = group
        if c.reward is None or row.reward is None:
            return
        self.scored += 1
        self.was += c.reward
        self.now += row.reward
        self._rewards.append((comparable(c.reward), comparable(row.reward)))

    def close(self) -> None:
        """Counts the last group; nothing where it is counted."""
        rewards, self._rewards = self._rewards, []
        for (a_was, a_now), (b_was, b_now) in combinations(rewards, 2):
            before, after = a_was - b_was, a_now - b_now
            self.pairs += 1
            self.reversed += before * after < 0
            self.tied += before != 0 and after == 0
            self.parted += before == 0 and after != 0
        if len(rewards) > 1:
            was, now = (max(range(len(rewards)), key=lambda at: (rewards[at][of], -at)) for of in (0, 1))
            self.groups += 1
            self.other_best += was != now

    def __str__(self) -> str:
        if not self.scored:
            return "no candidate has a reward before and after"
        mean = f"mean reward {self.now / self.scored:.4g}, where it was {self.was / self.scored:.4g}"
        if not self.pairs:
            return mean
        shares = ", ".join(
            f"{count / self.pairs:.1%} {what}"
            for count, what in (
                (self.reversed, "are ordered the other way round"),
                (self.tied, "become a tie"),
                (self.parted, "were a tie"),
            )
        )
        return (
            f"{mean}\nof {self.pairs:,} pairs of captions of one group {shares}\n"
            f"another caption is the best in {self.other_best:,} of {self.groups:,} groups"
        )
