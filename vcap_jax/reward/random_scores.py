"""The control family: scores that are drawn at random and know nothing of caption, reference or picture.

What a captioner gains with it, it gains from the update itself and not from what the reward says. A study of any other
family is worth little without it.
"""

from __future__ import annotations

import numpy as np

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores
from vcap_jax.reward.scores import MAX_SCORE


class RandomReward:
    """Component ``random``: a whole number from 0 to 10, all equally probable, which is the reward.

    It depends on the seed, the step, the group and the candidate's position alone. Two candidates of one text have
    different ones.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self._seed = tools.seed

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Never."""
        return False

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        """Never."""
        return False

    async def score_group(self, group: GroupForReward) -> GroupScores:
        """A score for each caption, whatever it says."""
        rng = np.random.default_rng([self._seed, group.step, group.index])
        drawn = rng.integers(0, MAX_SCORE + 1, len(group.captions)).astype(float).tolist()
        return GroupScores(
            sample_id=group.sample_id,
            step=group.step,
            candidates=tuple(CandidateScore(reward=score, components={"random": score}) for score in drawn),
            full_reward=float(MAX_SCORE),
            weights={"random": 1.0},
        )
