"""The VLM-as-judge family: the judge sees the picture and the caption, and no reference (the paper's Instruction 2).

For images it is the instruction ``image_no_reference``, for videos ``video_global_no_reference`` over the whole video.
A holistic judge has no part of the picture pointed out to it, so there is no local pass either.
"""

from __future__ import annotations

from dataclasses import replace

from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.witness_adjudicator import WitnessAdjudicatorReward


class HolisticJudgeReward(WitnessAdjudicatorReward):
    """The witness-adjudicator without its witness and without windows; weights and components are the same."""

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        local = replace(config.local, enabled=False)
        own = replace(config, family="witness_adjudicator", use_reference=False, local=local)
        super().__init__(own, tools)

    @classmethod
    def uses_reference(cls, config: RewardConfig) -> bool:
        """Never."""
        return False
