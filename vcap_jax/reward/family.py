"""Reward families behind one small interface, and finding the one that a configuration names.

A family is a class. It is told what to do by the ``reward`` section of the configuration and gets what it may use as
:class:`FamilyTools`; a group goes in, and for each candidate named components, a reward and its validity come out.
``reward.family`` is the name of a family of this project or the import path ``package.module:Class`` of another one.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from vcap_jax.errors import VCapError
from vcap_jax.reward.client import JudgeClient
from vcap_jax.reward.config import FAMILIES, JudgeConfig, RewardConfig
from vcap_jax.reward.group import GroupForReward, GroupScores
from vcap_jax.reward.store import JudgementStore

_METHODS = ("uses_reference", "asks_judge", "score_group")


class FamilyError(VCapError, ValueError):
    """The configured reward family cannot be used; the message names it and the remedy."""


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
    """Scores groups. Holds no state between groups but what is in the store, so that a resumed run repeats itself.

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

    async def score_group(self, group: GroupForReward) -> GroupScores:
        """One score for each caption, in their order.

        Raises for mistakes in the group and for what must end the run (JudgeUnavailable, StoreError). What judge
        or data lack for single candidates is a failure in the result.
        """
        ...


def load_family(config: RewardConfig) -> type[RewardFamily]:
    """The class that ``config.family`` names. Raises FamilyError."""
    where = f"reward.family {config.family!r}"
    path = FAMILIES.get(config.family, config.family)
    module_name, colon, class_name = path.partition(":")
    if not (colon and module_name and class_name):
        raise FamilyError(
            f"{where} is no family of this project: give one of {', '.join(FAMILIES)}, or the import path of your "
            "own as package.module:Class"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise FamilyError(
            f"{where}: {module_name} cannot be imported ({type(error).__name__}: {error}); it must be installed or "
            "on PYTHONPATH"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise FamilyError(f"{where}: {module_name} has no {class_name}")
    if problem := _misfit(found):
        raise FamilyError(f"{where} {problem}; see vcap_jax.reward.family.RewardFamily")
    return cast(type[RewardFamily], found)


def _misfit(found: Any) -> str | None:
    """Why something is no reward family; None if it is one."""
    if not isinstance(found, type):
        return "is not a class"
    missing = [name for name in _METHODS if not callable(getattr(found, name, None))]
    if missing:
        return f"lacks {', '.join(missing)}"
    if not inspect.iscoroutinefunction(found.score_group):  # type: ignore[attr-defined]
        return "has a score_group that is no `async def`"
    for name in ("uses_reference", "asks_judge"):
        if not isinstance(inspect.getattr_static(found, name), classmethod | staticmethod):
            return f"has an {name} that is neither a classmethod nor a staticmethod"
    try:
        inspect.signature(found).bind(None, None)
    except TypeError:
        return "is not made from (config, tools)"
    return None


def checked(scores: Any, group: GroupForReward, family: str) -> GroupScores:
    """The same scores. Raises FamilyError unless they are one for each caption of the group."""
    if not isinstance(scores, GroupScores):
        raise FamilyError(f"reward.family {family!r} gave a {type(scores).__name__}, not GroupScores")
    if len(scores.candidates) != len(group.captions):
        raise FamilyError(
            f"reward.family {family!r} gave {len(scores.candidates)} scores for the {len(group.captions)} captions "
            f"of {group.sample_id!r}"
        )
    return scores
