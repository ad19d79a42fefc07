"""A reward without a judge, which can end the process that asks it as a scheduler would."""

from __future__ import annotations

import os
import signal

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore, GroupForReward, GroupScores

STOP = "VCAP_TEST_STOP_IN_STEP"
"""The environment variable that names the step in which SIGTERM comes."""


class Letters:
    """The share of letters in a caption."""

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        del config, tools

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        return False

    @classmethod
    def asks_judge(cls, config: RewardConfig) -> bool:
        return False

    async def score_group(self, group: GroupForReward) -> GroupScores:
        if os.environ.get(STOP) == str(group.step):
            del os.environ[STOP]
            os.kill(os.getpid(), signal.SIGTERM)
        shares = [sum(map(str.isalpha, text)) / max(1, len(text)) for text in group.captions]
        candidates = tuple(CandidateScore(reward=share) for share in shares)
        return GroupScores(sample_id=group.sample_id, step=group.step, candidates=candidates)
