"""Reward families behind one small interface, and finding the one that a configuration names.

A family is a class. It is told what to do by the ``reward`` section of the configuration and gets what it may use as
:class:`FamilyTools`; a group goes in, and for each candidate named components, a reward and its validity come out.
A :class:`GroupFamily` gets whole groups. A :class:`CaptionFamily` gets each caption as soon as it has ended.
``reward.family`` is the name of a family of this project or the import path ``package.module:Class`` of another one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import FAMILIES, JudgeConfig, RewardConfig
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.family_errors import FamilyError
from vcap_jax.reward.family_results import misfit_scores
from vcap_jax.reward.group import GroupForReward, GroupScores
from vcap_jax.reward.open_group import OpenGroup
from vcap_jax.reward.store import JudgementStore, StoreError
from vcap_jax.system.plugins import described, named_object, users_code

__all__ = [
    "CaptionFamily",
    "FamilyError",
    "FamilyTools",
    "GroupFamily",
    "RewardFamily",
    "load_family",
    "made_family",
    "scores_by",
]

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
    if problem := misfit_scores(scores, await group.whole()):
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
