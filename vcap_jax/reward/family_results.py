"""What a reward family gave for a group, held against what it promised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.failures import Failure, FailureReason
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.scores import Scores


def misfit_scores(scores: object, group: GroupForReward) -> str | None:
    """What is wrong with the result for ``group``, in words that follow "gave"; None if it is one score for each
    caption, of the types that metrics, store and other processes rely on."""
    if not isinstance(scores, GroupScores):
        return f"a {_type(scores)}, not GroupScores"
    given: Any = scores  # a family of a user's own: the fields may hold anything
    if (given.sample_id, given.step) != (group.sample_id, group.step):
        return f"the scores of sample {given.sample_id!r} in step {given.step}, which was not asked for"
    if not isinstance(given.candidates, tuple):
        return f"a {_type(given.candidates)} as candidates, not a tuple of CandidateScore"
    if len(given.candidates) != len(group.captions):
        return f"{len(given.candidates)} scores for {len(group.captions)} captions"
    for number, candidate in enumerate(given.candidates):
        if problem := _misfit_candidate(candidate):
            return f"{problem} for caption {number} of {len(group.captions)}"
    if not _is_number(given.full_reward):
        return f"a full_reward of type {_type(given.full_reward)}, not float or None"
    if not isinstance(given.window, TimeWindow | None):
        return f"a window of type {_type(given.window)}, not TimeWindow or None"
    return None


def _misfit_candidate(candidate: object) -> str | None:
    if not isinstance(candidate, CandidateScore):
        return f"a {_type(candidate)}, not a CandidateScore,"
    given: Any = candidate  # likewise
    if not _is_number(given.reward):
        return f"a reward of type {_type(given.reward)}, not float or None,"
    if not isinstance(given.failure, Failure | None):
        return f"a failure of type {_type(given.failure)}, not Failure or None,"
    if given.failure is not None and given.failure.reason not in get_args(FailureReason):
        return f"a failure for the reason {given.failure.reason!r}, which is none (yours is 'other'),"
    wanted: list[tuple[str, type | tuple[type, ...]]] = [
        ("components", (float, int)),
        ("notes", str),
        ("verdicts", Scores),
        ("keys", (str, type(None))),
    ]
    for field, types in wanted:
        values = getattr(given, field)
        if not isinstance(values, Mapping):
            return f"{field} of type {_type(values)}, not a mapping,"
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, types):
                return f"{field} with {name!r} of type {_type(value)}"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, float | int | None)


def _type(value: object) -> str:
    return type(value).__name__
