"""A reward without a judge, which can end the process that asks it as a scheduler would."""

from __future__ import annotations

import os
import signal

from benchmarks.letter_reward import LetterReward
from vcap_jax.reward.group import GroupForReward, GroupScores

STOP = "VCAP_TEST_STOP_IN_STEP"
"""The environment variable that names the step in which SIGTERM comes."""


class Letters(LetterReward):
    """The share of a letter in a caption."""

    async def score_group(self, group: GroupForReward) -> GroupScores:
        if os.environ.get(STOP) == str(group.step):
            del os.environ[STOP]
            os.kill(os.getpid(), signal.SIGTERM)
        return await super().score_group(group)
