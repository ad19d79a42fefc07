"""From scores to the scalar reward (Appendix "VCap Reward Hyperparameters", Eq. reward-agg and
reward-video).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.reward.scores import Scores


@settings
class RewardWeights:
    """Weights of the judge's scores, which are 0 to 10; set one to 0 for the ablation without it."""

    correctness: float = Field(default=0.05, ge=0)
    """Weight of the score for saying nothing untrue."""
    completeness: float = Field(default=0.04, ge=0)
    """Weight of the score for leaving nothing out."""
    text_quality: float = Field(default=0.01, ge=0)
    """Weight of the third score, which is Reasonability in the global pass over a video."""
    local: float = Field(default=0.1, ge=0)
    """Weight of the per-segment reward of a video."""

    def __post_init__(self) -> None:
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


def comparable(reward: float) -> float:
    """The reward for being compared: those that differ by the rounding of their sums alone are one number here.

    With the paper's weights, two verdicts that earn the same come to different floating-point numbers in two of five
    cases: 0.04 x 6 + 0.01 x 4 and 0.05 x 4 + 0.04 x 1 + 0.01 x 4.
    """
    return round(reward, 9)


def component_weights(
    weights: RewardWeights, modality: Literal["image", "video"], *, local: bool
) -> dict[str, float]:
    """The reward as a weighted sum: the weight of each component by its name. local: whether there is a local pass."""
    quality = {
        "correctness": weights.correctness,
        "completeness": weights.completeness,
        "text_quality": weights.text_quality,
    }
    if modality == "image":
        return quality
    whole = {"reasonability" if name == "text_quality" else name: w for name, w in quality.items()}
    if not local:
        return whole
    return whole | {f"local/{name}": weights.local * w for name, w in quality.items()}
