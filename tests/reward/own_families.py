"""Reward families as a user would write them, good and bad, for tests of the import path."""

import json
from asyncio import CancelledError
from collections.abc import Callable
from typing import ClassVar

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.open_group import OpenGroup, for_each


class Length:
    """Words up to a limit; captions with a forbidden word are masked."""

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self.most = int(config.options["most"])

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        return False

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        return False

    async def score_group(self, group: GroupForReward) -> GroupScores:
        return GroupScores(
            sample_id=group.sample_id,
            step=group.step,
            candidates=tuple(map(self.score, group.captions)),
            full_reward=1.0,
        )

    def score(self, caption: str) -> CandidateScore:
        words = len(caption.split())
        if "forbidden" in caption:
            return CandidateScore(reward=None, failure=Failure(reason="other", detail="a forbidden word"))
        return CandidateScore(reward=min(words, self.most) / self.most, components={"words": float(words)})


class PoolSize(Length):
    """All captions of the pool of references, counted."""

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self.size = float(sum(map(len, tools.references.values())))

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        return True

    def score(self, caption: str) -> CandidateScore:
        return CandidateScore(reward=1.0, components={"references": self.size})


class Short(Length):
    async def score_group(self, group: GroupForReward) -> GroupScores:
        whole = await super().score_group(group)
        return GroupScores(sample_id=whole.sample_id, step=whole.step, candidates=whole.candidates[1:])


class ByCaption:
    """Words, of each caption as soon as it has ended. heard: the captions, in the order of their ends."""

    heard: ClassVar[list[str]] = []

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        pass

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        return False

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        return False

    async def score_captions(self, group: OpenGroup) -> GroupScores:
        async def score(caption: str) -> CandidateScore:
            self.heard.append(caption)
            return CandidateScore(reward=float(len(caption.split())))

        earned = await for_each(group.texts(), score)
        captions = (await group.whole()).captions
        return GroupScores(
            sample_id=group.prompt.sample_id,
            step=group.prompt.step,
            candidates=tuple(earned[caption] for caption in captions),
        )


class Both(ByCaption):
    """Extends a family that scores captions by a method that would never be called."""

    async def score_group(self, group: GroupForReward) -> GroupScores:
        raise NotImplementedError


class Broken(Length):
    def score(self, caption: str) -> CandidateScore:
        return CandidateScore(reward=float("nan"))


class Raising(Length):
    def score(self, caption: str) -> CandidateScore:
        raise {"key": KeyError, "exit": SystemExit, "cancelled": CancelledError}[caption]("of the user's")


class Deep(Length):
    """Its own code calls the standard library, which raises."""

    def score(self, caption: str) -> CandidateScore:
        return CandidateScore(reward=float(json.loads(caption)))  # the line that is named


class NoReferenceAnswer(Length):
    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        return config.options.get("reference")  # type: ignore[return-value]


class AskingFails(Length):
    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        return bool(config.options["judge"])


class Anything(Length):
    """Gives whatever is asked for by the first caption."""

    given: ClassVar[dict[str, Callable[[GroupForReward], object]]] = {}

    async def score_group(self, group: GroupForReward) -> GroupScores:
        return self.given[group.captions[0]](group)  # type: ignore[return-value]


class Synchronous(Length):
    def score_group(self, group: GroupForReward) -> GroupScores:  # type: ignore[override]
        raise NotImplementedError


class Instance(Length):
    def asks_judge(self, config: RewardConfig) -> bool:  # type: ignore[override]
        return False


class Empty:
    pass


class OtherArguments(Length):
    def __init__(self) -> None:
        pass


async def function(group: GroupForReward) -> None:
    pass
