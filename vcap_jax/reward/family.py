"""Reward families behind one small interface, and finding the one that a configuration names.

A family is a class. It is told what to do by the ``reward`` section of the configuration and gets what it may use as
:class:`FamilyTools`; a group goes in, and for each candidate named components, a reward and its validity come out.
A :class:`GroupFamily` gets whole groups. A :class:`CaptionFamily` gets each caption as soon as it has ended.
``reward.family`` is the name of a family of this project or the import path ``package.module:Class`` of another one.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, SupportsFloat, cast, get_args, runtime_checkable

from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import FAMILIES, JudgeConfig, RewardConfig
from vcap_jax.reward.errors import FamilyError, JudgeUnavailable
from vcap_jax.reward.failures import Failure, FailureReason
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.open_group import OpenGroup
from vcap_jax.reward.scores import Scores
from vcap_jax.reward.store import JudgementStore, StoreError
from vcap_jax.system.plugins import described, is_a, named_object, users_code

_SAYS = ("uses_reference", "asks_judge")
_SCORES = ("score_group", "score_captions")
_ENDS_THE_RUN = (JudgeUnavailable, StoreError)


@dataclass(frozen=True, kw_only=True)
class FamilyTools:
    """What a family may use.

    seed: of all its random choices. judge: the open client, None where the family asks nobody; judge_config: its
    settings. store: answers that were given before, and where new ones go. references: the whole pool by sample.
    """

    seed: int
    judge: JudgeClient | None = None
    judge_config: JudgeConfig = field(default_factory=JudgeConfig)
    store: JudgementStore | None = None
    references: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def client(self) -> JudgeClient:
        """The judge of a family that asks one."""
        if self.judge is None:
            raise FamilyError("this reward family needs a judge and has said that it asks none")
        return self.judge


class RewardFamily(Protocol):
    """What all families are asked; each is a ``GroupFamily`` or a ``CaptionFamily``. It holds no state between groups
    but what is in the store, so that a resumed run repeats itself.

    The constructor raises ValueError and its kinds for settings that cannot work.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None: ...

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Whether groups need a reference: the run then makes a pool and leaves out samples without any."""
        ...

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        """Whether it asks the endpoints of ``judge``; if not, none need be there."""
        ...


class GroupFamily(RewardFamily, Protocol):
    """Compares the candidates of a group with each other, or has no use for one before all are there."""

    async def score_group(self, group: GroupForReward) -> GroupScores:
        """One score for each caption, in their order.

        Raises for mistakes in the group and for what must end the run (JudgeUnavailable, StoreError). What judge
        or data lack for single candidates is a failure in the result.
        """
        ...


@runtime_checkable
class CaptionFamily(RewardFamily, Protocol):
    """Scores each caption by itself, so that it is judged while others of its group are still drawn."""

    async def score_captions(self, group: OpenGroup) -> GroupScores:
        """As ``GroupFamily.score_group``, of a group whose captions it gets as they end (``OpenGroup.texts``). What a
        caption earns must not depend on when it ends."""
        ...


def load_family(config: RewardConfig) -> type[GroupFamily | CaptionFamily]:
    """The class that ``config.family`` names. Raises FamilyError for one that cannot be used with ``config``."""
    where = _named(config.family)
    found = named_object(
        FAMILIES.get(config.family, config.family),
        where=where,
        kind="family",
        known=FAMILIES,
        error=FamilyError,
    )
    if problem := _misfit(found):
        raise FamilyError(f"{where} {problem}; see vcap_jax/reward/family.py")
    for name in _SAYS:
        with users_code(f"{where} failed when it was asked {name}", found.__module__, FamilyError):
            said = getattr(found, name)(config)
        if not isinstance(said, bool):
            raise FamilyError(
                f"{where} answers {name} with a {type(said).__name__}, where True or False is wanted"
            )
    return cast(type[GroupFamily | CaptionFamily], found)


def made_family(config: RewardConfig, tools: FamilyTools) -> GroupFamily | CaptionFamily:
    """The configured family itself. Raises FamilyError, and what a family of this project raises for settings that
    cannot work."""
    family = load_family(config)
    where = f"{_named(config.family)} cannot be made with these settings"
    ours = config.family in FAMILIES
    with users_code(where, family.__module__, FamilyError, passing=_ENDS_THE_RUN, ours=ours):
        return family(config, tools)


async def scores_by(family: GroupFamily | CaptionFamily, name: str, group: OpenGroup) -> GroupScores:
    """What ``family`` makes of ``group``: one score for each of its captions. name: ``reward.family``.

    Raises FamilyError for other results and for whatever a family of a user's own raises, and what must end the run
    (JudgeUnavailable, StoreError).
    """
    where, module = f"{_named(name)} failed on sample {group.prompt.sample_id!r}", type(family).__module__
    try:
        with users_code(where, module, FamilyError, passing=_ENDS_THE_RUN, ours=name in FAMILIES):
            if isinstance(family, CaptionFamily):
                scores = await family.score_captions(group)
            else:
                scores = await family.score_group(await group.whole())
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # by us, when the session is closed
            raise
        raise FamilyError(f"{where}: {described(error, module)}") from error
    if problem := _misfit_scores(scores, await group.whole()):
        method = "score_captions" if isinstance(family, CaptionFamily) else "score_group"
        raise FamilyError(f"{where}: {method} gave {problem}")
    return scores


def _named(name: str) -> str:
    return f"reward.family {name!r}"


def _misfit(found: object) -> str | None:
    """Why something is no reward family; None if it is one."""
    if not isinstance(found, type):
        return "is not a class"
    missing = [name for name in _SAYS if not callable(getattr(found, name, None))]
    scores = [name for name in _SCORES if callable(getattr(found, name, None))]
    if missing or not scores:
        return f"lacks {', '.join([*missing, *([] if scores else [' or '.join(_SCORES)])])}"
    if len(scores) > 1:
        return f"has both {' and '.join(scores)}, one of them perhaps from a class that it extends: extend that one"
    if not inspect.iscoroutinefunction(getattr(found, scores[0])):
        return f"has a {scores[0]} that is no `async def`"
    for name in _SAYS:
        if not isinstance(inspect.getattr_static(found, name), classmethod | staticmethod):
            return f"has an {name} that is neither a classmethod nor a staticmethod"
    try:
        inspect.signature(found).bind(None, None)
    except TypeError:
        return "is not made from (config, tools)"
    return None


def _misfit_scores(scores: object, group: GroupForReward) -> str | None:
    """What is wrong with the result for ``group``, in words that follow "gave"; None if it is one score for each
    caption, of the types that metrics, store and other processes rely on."""
    if not isinstance(scores, GroupScores):
        return f"a {_type(scores)}, not GroupScores"
    if scores.sample_id != group.sample_id:
        return f"the scores of sample {scores.sample_id!r}: hand on the group's own sample_id"
    if scores.step != group.step:
        return f"scores of step={scores.step!r}: hand on the group's own, which counts from 0 and is {group.step}"
    if not is_a(scores.candidates, tuple):
        return f"a {_type(scores.candidates)} as candidates, not a tuple of CandidateScore"
    if len(scores.candidates) != len(group.captions):
        return f"{len(scores.candidates)} scores for {len(group.captions)} captions"
    for number, candidate in enumerate(scores.candidates):
        if problem := _misfit_candidate(candidate):
            return f"{problem} for caption {number} of {len(group.captions)}"
    if not is_a(scores.full_reward, float | int | None):
        return f"a full_reward of type {_number(scores.full_reward)}, not float or None"
    if problem := _misfit_limit(scores):
        return problem
    if not is_a(scores.window, TimeWindow | None):
        return f"a window of type {_type(scores.window)}, not TimeWindow or None"
    return _misfit_weights(scores)


def _misfit_limit(scores: GroupScores) -> str | None:
    """What keeps ``full_reward`` from being the most that a caption can earn; sums that come to it may be rounded."""
    full = scores.full_reward
    if full is None:
        return None
    if not math.isfinite(full):
        return f"the full_reward {full}: give a number, or None where there is no limit"
    for number, reward in enumerate(scores.rewards):
        if reward is not None and reward > full and not _same_sum(reward, full):
            return (
                f"the reward {reward:.7g} for caption {number} of {len(scores.candidates)}, which is above the "
                f"full_reward of {full:.7g}: give the most that a caption can earn, or None where there is no limit"
            )
    return None


def _same_sum(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def _misfit_weights(scores: GroupScores) -> str | None:
    """What keeps the rewards from being the weighted sums that ``weights`` says they are."""
    if not is_a(scores.weights, Mapping):
        return f"weights of type {_type(scores.weights)}, not a mapping"
    for name, weight in scores.weights.items():
        if not is_a(name, str) or not is_a(weight, float | int):
            return f"weights with {name!r} of type {_number(weight)}"
    if not scores.weights:
        return None
    for number, candidate in enumerate(scores.candidates):
        if candidate.reward is None:
            continue
        where = f"for caption {number} of {len(scores.candidates)}"
        if missing := [name for name in scores.weights if name not in candidate.components]:
            return f"no component {missing[0]!r}, which has a weight, {where}"
        total = sum(weight * candidate.components[name] for name, weight in scores.weights.items())
        if not _same_sum(total, candidate.reward):
            return (
                f"the reward {candidate.reward:g}, where the weighted components add up to {total:g}, {where}"
            )
    return None


def _misfit_candidate(candidate: object) -> str | None:
    if not isinstance(candidate, CandidateScore):
        return f"a {_type(candidate)}, not a CandidateScore,"
    if not is_a(candidate.reward, float | int | None):
        return f"a reward of type {_number(candidate.reward)}, not float or None,"
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
    for part, types in wanted:
        values = getattr(candidate, part)
        if not isinstance(values, Mapping):
            return f"{part} of type {_type(values)}, not a mapping,"
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, types):
                return (
                    f"{part} with {name!r} of type {_number(value) if part == 'components' else _type(value)}"
                )
    return None


def _number(value: object) -> str:
    """The type of what should have been a number; of one of NumPy, JAX or PyTorch how it becomes one."""
    foreign = isinstance(value, SupportsFloat) and not isinstance(value, float | int)
    return f"{_type(value)} (write float(...))" if foreign else _type(value)


def _type(value: object) -> str:
    return type(value).__name__
