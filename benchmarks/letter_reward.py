"""A reward that costs nothing and spreads, for timing a step without a judge: the share of a letter in a caption."""

from __future__ import annotations

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores


class LetterReward:
    """A reward family by import path: ``reward.family=benchmarks.letter_reward:LetterReward``."""

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        del config, tools

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        return False

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        return False

    async def score_group(self, group: GroupForReward) -> GroupScores:
        """One score for each caption."""
        shares = [text.count("e") / max(len(text), 1) for text in group.captions]
        return GroupScores(
            sample_id=group.sample_id,
            step=group.step,
            candidates=tuple(CandidateScore(reward=s, components={"letters": s}) for s in shares),
        )
