"""Reward families as a user would write them, good and bad, for tests of the import path."""

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores


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


class Short(Length):
    async def score_group(self, group: GroupForReward) -> GroupScores:
        whole = await super().score_group(group)
        return GroupScores(sample_id=whole.sample_id, step=whole.step, candidates=whole.candidates[1:])


class Broken(Length):
    def score(self, caption: str) -> CandidateScore:
        return CandidateScore(reward=float("nan"))


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
