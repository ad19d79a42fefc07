"""DCScore's formula, pure: predicted facts, verified and matched to a person's facts, to precision, recall and F1.

Source: Ye et al., "Painting with Words" (ICLR 2025), as their public code has it, on which DCScore's figures rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class FactScores:
    """precision, recall and their harmonic mean, each 0 to 1."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One judgement of the P predicted facts of a caption.

    right: of each, whether it was verified. matched: of each the number of the person's fact that says the same, None
    without one. relevant: of each, whether it describes what is seen. oracle: how many facts the person wrote.
    """

    right: Sequence[bool]
    matched: Sequence[int | None]
    relevant: Sequence[bool]
    oracle: int


def fact_scores(trial: Trial, *, relevant_only: bool, weigh_all: bool) -> FactScores | None:
    """The scores of a trial.

    With P facts, O of the person's, E right facts without a match, and n(k) facts matched to the person's fact k:

        precision = right / P
        recall = (E + sum over right facts matched to k of 1 / n(k)) / (O + E)
        f1 = 2 precision recall / (precision + recall + 1e-8)

    relevant_only: leaves out what describes nothing seen; O stays. weigh_all: n(k) counts all facts nevertheless, as
    the public code does. None without a fact, where precision is not defined.
    """
    taken = [k for k in range(len(trial.right)) if trial.relevant[k] or not relevant_only]
    if not taken or not trial.oracle:
        return None
    weighed = range(len(trial.right)) if weigh_all else taken
    times = Counter(trial.matched[k] for k in weighed if trial.matched[k] is not None)
    right = [k for k in taken if trial.right[k]]
    extra = sum(trial.matched[k] is None for k in right)
    found = sum(1 / times[trial.matched[k]] for k in right if trial.matched[k] is not None)
    precision = len(right) / len(taken)
    recall = (extra + found) / (trial.oracle + extra)
    return FactScores(
        precision=precision, recall=recall, f1=2 * precision * recall / (precision + recall + _EPSILON)
    )


@dataclass(frozen=True, kw_only=True)
class DcScore(FactScores):
    """A caption's scores, each the mean over its trials, 0 to 1. dcscore: the mean of both F1."""

    f1_relevant: float

    @property
    def dcscore(self) -> float:
        return (self.f1 + self.f1_relevant) / 2


def dcscore(trials: Sequence[Trial], *, official: bool) -> DcScore | None:
    """The score of a caption over its trials.

    A caption without a fact covers nothing and is right about nothing: 0; so is its relevant part without a relevant
    fact. official: such a caption has no score, None, and n(k) counts all facts (``fact_scores``).
    """
    nothing = FactScores(precision=0.0, recall=0.0, f1=0.0)
    both: list[tuple[FactScores, FactScores]] = []
    for trial in trials:
        every = fact_scores(trial, relevant_only=False, weigh_all=True)
        relevant = fact_scores(trial, relevant_only=True, weigh_all=official)
        if official and (every is None or relevant is None):
            return None
        both.append((every or nothing, relevant or nothing))
    count = len(both)
    return DcScore(
        precision=sum(every.precision for every, _ in both) / count,
        recall=sum(every.recall for every, _ in both) / count,
        f1=sum(every.f1 for every, _ in both) / count,
        f1_relevant=sum(relevant.f1 for _, relevant in both) / count,
    )
