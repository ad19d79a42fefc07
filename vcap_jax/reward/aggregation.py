"""From scores to the scalar reward (Appendix "VCap Reward Hyperparameters", Eq. reward-agg and
reward-video).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vcap_jax.reward.scores import Scores


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """Weights of the judge's scores, which are 0 to 10; set one to 0 for the ablation without it.

    correctness: of the score for saying nothing untrue. completeness: of the score for leaving nothing out.
    text_quality: of the third score, which is Reasonability in the global pass over a video.
    local: of the per-segment reward of a video.
    """

    correctness: float = 0.05
    completeness: float = 0.04
    text_quality: float = 0.01
    local: float = 0.1

    def __post_init__(self) -> None:
        for name in ("correctness", "completeness", "text_quality", "local"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"reward.weights.{name} is {value}: give a finite number, 0 or above")
        if self.correctness == self.completeness == self.text_quality == 0:
            raise ValueError(
                "reward.weights: correctness, completeness and text_quality are all 0, so every reward "
                "would be 0; leave one above 0"
            )


def weighted_reward(scores: Scores, weights: RewardWeights) -> float:
    """Eq. reward-agg: ``w_corr s_corr + w_comp s_comp + w_txt s_third``; at most 1 with the paper's
    weights.
    """
    return (
        weights.correctness * scores.correctness
        + weights.completeness * scores.completeness
        + weights.text_quality * scores.third
    )


def video_reward(global_scores: Scores, local_scores: Scores | None, weights: RewardWeights) -> float:
    """Eq. reward-video: ``r_global + w_local r_local``; at most 1.1 with the paper's weights.

    local_scores: None where the local term is switched off.
    """
    reward = weighted_reward(global_scores, weights)
    if local_scores is not None:
        reward += weights.local * weighted_reward(local_scores, weights)
    return reward
