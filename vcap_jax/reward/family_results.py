"""What a reward family gave for a group, held against what it promised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.failures import Failure, FailureReason
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.scores import Scores
from vcap_jax.system.plugins import is_a


def misfit_scores(scores: object, group: GroupForReward) -> str | None:
    """What is wrong with the result for ``group``, in words that follow "gave"; None if it is one score for each
    caption, of the types that metrics, store and other processes rely on."""
    if not isinstance(scores, GroupScores):
        return f"a {_type(scores)}, not GroupScores"
    if (scores.sample_id, scores.step) != (group.sample_id, group.step):
        return f"the scores of sample {scores.sample_id!r} in step {scores.step}, which was not asked for"
    if not is_a(scores.candidates, tuple):
        return f"a {_type(scores.candidates)} as candidates, not a tuple of CandidateScore"
    if len(scores.candidates) != len(group.captions):
        return f"{len(scores.candidates)} scores for {len(group.captions)} captions"
    for number, candidate in enumerate(scores.candidates):
        if problem := _misfit_candidate(candidate):
            return f"{problem} for caption {number} of {len(group.captions)}"
    if not _is_number(scores.full_reward):
        return f"a full_reward of type {_type(scores.full_reward)}, not float or None"
    if not is_a(scores.window, TimeWindow | None):
        return f"a window of type {_type(scores.window)}, not TimeWindow or None"
    return _misfit_weights(scores)


def _misfit_weights(scores: GroupScores) -> str | None:
    """What keeps the rewards from being the weighted sums that ``weights`` says they are."""
    if not is_a(scores.weights, Mapping):
        return f"weights of type {_type(scores.weights)}, not a mapping"
    for name, weight in scores.weights.items():
        if not is_a(name, str) or not is_a(weight, float | int):
            return f"weights with {name!r} of type {_type(weight)}"
    if not scores.weights:
        return None
    for number, candidate in enumerate(scores.candidates):
        if candidate.reward is None:
            continue
        where = f"for caption {number} of {len(scores.candidates)}"
        if missing := [name for name in scores.weights if name not in candidate.components]:
            return f"no component {missing[0]!r}, which has a weight, {where}"
        total = sum(weight * candidate.components[name] for name, weight in scores.weights.items())
        if not math.isclose(total, candidate.reward, rel_tol=1e-6, abs_tol=1e-9):
            return (
                f"the reward {candidate.reward:g}, where the weighted components add up to {total:g}, {where}"
            )
    return None


def _misfit_candidate(candidate: object) -> str | None:
    if not isinstance(candidate, CandidateScore):
        return f"a {_type(candidate)}, not a CandidateScore,"
    if not _is_number(candidate.reward):
        return f"a reward of type {_type(candidate.reward)}, not float or None,"
    if not is_a(candidate.failure, Failure | None):
        return f"a failure of type {_type(candidate.failure)}, not Failure or None,"
    if candidate.failure is not None and candidate.failure.reason not in get_args(FailureReason):
        return f"a failure for the reason {candidate.failure.reason!r}, which is none (yours is 'other'),"
    wanted: list[tuple[str, type | tuple[type, ...]]] = [
        ("components", (float, int)),
        ("notes", str),
        ("verdicts", Scores),
        ("keys", (str, type(None))),
    ]
    for field, types in wanted:
        values = getattr(candidate, field)
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
