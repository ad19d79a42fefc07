"""From the rewards of a group to the advantages of its captions (paper, Eq. grpo-adv).

    A_i = (r_i - mean(r)) / (std(r) + 1e-4),  mean and std (ddof = 1) over the group's valid candidates

A candidate whose judge failed has no reward: it is left out of the statistics, gets advantage 0 and takes no
part in the update. (Counting it as reward 0, as ms-swift does, drags the group's mean; TRL leaves it out.) A
group with fewer than two valid candidates has nothing to compare and is left out as a whole.

DAPO's two additions are here as well, as far as a step of fixed shape can have them: groups without spread can be
left out (``drop_flat``; they are counted, not replaced by further sampling), and captions near the longest allowed
length can be made to cost (``OverlongConfig``).

A reward that is a weighted sum of components hides a component of little spread behind one of much. GDPO (arXiv
2601.05242) and BalCapRL's c-GDPO (arXiv 2605.07394) normalise each component over the group alone and add the results
(``component_advantages``).

The functions accept numpy arrays on the host and JAX arrays under jit alike and answer in kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import Field

from vcap_jax.configuration import settings

Array = np.ndarray | jax.Array

_ROUNDING = 1e-9
"""Rewards that differ by no more are equal where flat groups are dropped."""


@settings
class AdvantageConfig:
    """How rewards become advantages."""

    scale: Literal["group", "batch", "none"] = "group"
    """What the centred reward is divided by: its group's standard deviation (GRPO), that of all
    valid rewards of the step ("batch"), or nothing ("none", Dr. GRPO)."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What is subtracted: the group's mean, or the mean of the other candidates ("leave_one_out",
    RLOO)."""
    epsilon: float = Field(default=1e-4, gt=0)
    """Added to the standard deviation."""
    drop_flat: bool = False
    """Groups whose rewards are all equal take no part (DAPO), so that neither the KL acts on them
    nor the loss's denominators count them. Their places in the step stay empty: nothing is sampled
    in their stead."""
    per_component: bool = False
    """Each component of the reward is divided by its own standard deviation in the group before
    they are added with the reward's weights, so that none drowns in another's spread (GDPO). The
    sum takes the reward's place above: with scale "batch" it is GDPO, with "none" BalCapRL's c-GDPO.
    For rewards that are weighted sums: all families of this project but claim_differences. Flat
    groups are then those without any advantage."""


@settings
class OverlongConfig:
    """What a caption costs that comes near the longest allowed length (DAPO, Eq. 13)."""

    weight: float = Field(default=0.0, ge=0)
    """Taken off the reward of a caption of the full length; 0 switches it off. DAPO takes 1 where
    rewards are -1 and 1."""
    buffer: float = Field(default=0.2, gt=0, le=1)
    """Share of the longest length over which the cost rises from 0 (DAPO: 4,096 of 20,480)."""


def overlong_penalty(lengths: Int[Array, "*N"], longest: int, config: OverlongConfig) -> Float[Array, "*N"]:
    """What is added to rewards for length: 0 down to ``-config.weight``, linear over the last tokens.

    lengths: tokens of each caption, end token included. longest: the most that a caption can have.
    The same as TRL's ``get_soft_overlong_punishment`` for weight 1 and a whole number of tokens in the buffer.
    """
    xp = lengths.__array_namespace__()
    room = config.buffer * longest
    return -config.weight * xp.clip((lengths - (longest - room)) / room, 0.0, 1.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages and what they were computed from.

    advantages: 0 where a candidate takes no part.
    contributes: the candidates that enter the loss and its denominators: valid and in a group of
        at least two valid ones (whose rewards are not all equal, with ``drop_flat``).
    mean, std: over each group's valid candidates (ddof 1); 0 where a group has fewer than one or two.
    valid: how many candidates of each group are.
    skipped: groups with fewer than two valid candidates: they contribute nothing.
    flat: other groups whose rewards are all equal but for their rounding: no advantage, though the KL still acts
        unless they are dropped.
    """

    advantages: Float[Array, "B G"]
    contributes: Bool[Array, "B G"]
    mean: Float[Array, " B"]
    std: Float[Array, " B"]
    valid: Int[Array, " B"]
    skipped: Bool[Array, " B"]
    flat: Bool[Array, " B"]


def group_advantages(
    rewards: Float[Array, "B G"], valid: Bool[Array, "B G"], config: AdvantageConfig
) -> GroupAdvantages:
    """Advantages of B groups of G candidates.

    rewards: entries that are not valid may hold anything, NaN and inf included.
    valid: a valid reward that is not finite is treated as not valid: a number that cannot be
        compared must not reach the others of its group.
    Raises ValueError if the shapes are not equal and two-dimensional.
    """
    if rewards.ndim != 2 or rewards.shape != valid.shape:
        raise ValueError(f"rewards {rewards.shape} and valid {valid.shape} must both be [groups, candidates]")
    xp = rewards.__array_namespace__()
    valid = xp.asarray(valid, dtype=bool) & xp.isfinite(rewards)
    # Zeros take the place of whatever stands at invalid entries before any arithmetic, so that neither a sum
    # nor a gradient can meet a NaN.
    rewards = xp.where(valid, rewards, 0.0)
    count = valid.sum(axis=1)
    mean = rewards.sum(axis=1) / xp.maximum(count, 1)
    skipped = count < 2
    contributes = valid & ~skipped[:, None]
    lowest = xp.where(valid, rewards, xp.inf).min(axis=1)
    highest = xp.where(valid, rewards, -xp.inf).max(axis=1)
    flat = ~skipped & (highest - lowest <= _ROUNDING)
    if config.drop_flat:
        contributes = contributes & ~flat[:, None]
    # Equal rewards may differ from their own rounded mean by one bit, which the division would blow up.
    centred = xp.where(valid & (lowest != highest)[:, None], rewards - mean[:, None], 0.0)
    std = _root(xp, (centred**2).sum(axis=1) / xp.maximum(count - 1, 1))
    advantages = centred
    if config.baseline == "leave_one_out":
        # r_i - mean of the others = n / (n - 1) (r_i - mean of all)
        advantages = centred * (count / xp.maximum(count - 1, 1))[:, None]
    if config.scale == "group":
        advantages = advantages / (std[:, None] + config.epsilon)
    elif config.scale == "batch":
        advantages = advantages / (_spread(xp, rewards, valid) + config.epsilon)
    return GroupAdvantages(
        advantages=xp.where(contributes, advantages, 0.0),
        contributes=contributes,
        mean=mean,
        std=xp.where(skipped, 0.0, std),
        valid=count,
        skipped=skipped,
        flat=flat,
    )


def component_advantages(
    rewards: Float[Array, "B G"],
    components: Float[Array, "B G K"],
    weights: Float[Array, "B K"],
    valid: Bool[Array, "B G"],
    config: AdvantageConfig,
) -> GroupAdvantages:
    """Advantages of rewards that are weighted sums, with each component normalised over its group alone.

        s_i = sum_k w_k (c_ik - mean_k) / (std_k + epsilon)

    and from the s_i as :func:`group_advantages` has it from rewards, with ``config.scale`` and ``config.baseline``.

    components, weights: K of each candidate, and of each group. A component that is equal in a whole group adds 0.
    ``mean``, ``std`` and ``valid`` of the result are the rewards'; ``flat`` are groups without any advantage.
    Raises ValueError if the shapes do not fit each other.
    """
    if components.shape != (*rewards.shape, weights.shape[-1]) or weights.shape[0] != rewards.shape[0]:
        raise ValueError(
            f"components {components.shape} must be [groups, candidates, components] for rewards {rewards.shape} and "
            f"weights {weights.shape}"
        )
    alone = AdvantageConfig(epsilon=config.epsilon)
    told = group_advantages(rewards, valid, config)
    xp = rewards.__array_namespace__()
    summed = xp.zeros_like(rewards)
    for k in range(weights.shape[-1]):
        one = group_advantages(components[:, :, k], valid & xp.isfinite(rewards), alone)
        summed = summed + weights[:, k, None] * one.advantages
    # The lone candidate of a group that is left out has a sum of 0 that nobody measured.
    made = group_advantages(summed, valid & xp.isfinite(rewards) & ~told.skipped[:, None], config)
    return replace(made, mean=told.mean, std=told.std, valid=told.valid)


def _spread(xp: ModuleType, values: Array, valid: Array) -> Array:
    """Standard deviation (ddof 1) of all valid values; 0 if there are fewer than two."""
    count = valid.sum()
    centred = xp.where(valid, values - values.sum() / xp.maximum(count, 1), 0.0)
    return _root(xp, (centred**2).sum() / xp.maximum(count - 1, 1))


def _root(xp: ModuleType, x: Array) -> Array:
    """Square root whose gradient at 0 is 0 instead of infinite."""
    return xp.where(x > 0, xp.sqrt(xp.where(x > 0, x, 1.0)), 0.0)
