"""The GRPO objective on per-token log-probabilities (paper, Eq. grpo), as pure functions.

    J = E[ mean_i mean_t ( min(rho A, clip(rho, 1 - eps, 1 + eps) A) - beta KL ) ],   loss = -J

Log-probabilities are those of logits / temperature over the whole vocabulary. Arrays are [..., T] with any
leading axes (here [B, G]). A caption that takes no part (``GroupAdvantages.contributes``) is masked out
altogether: it adds nothing to a numerator, and denominators count valid captions only. TRL and ms-swift keep
such rows in the sequence count, which shrinks the step; with every candidate valid the three agree.

A step is usually computed in several micro-batches. Denominators therefore belong to the step: counted once
over all its captions (``step_totals``) and handed to every call, they make losses, gradients and metrics of
the micro-batches simply add up to those of the full batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int
from pydantic import Field

from vcap_jax.configuration import settings

Array = jax.Array
Metrics = dict[str, Array]


@settings
class ObjectiveConfig:
    """Which loss is minimised (defaults: the paper's image run on ms-swift)."""

    surrogate: Literal["clipped", "cispo"] = "clipped"
    """What the ratio of new to old policy does: "clipped" (PPO, the paper): tokens whose ratio has left
    the bounds to the side that pays have no gradient; "cispo" (MiniMax-M1): the bounded ratio weighs a
    token's gradient, and every token has one."""
    epsilon_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped to at least 1 - epsilon_low."""
    epsilon_high: float = Field(default=0.2, ge=0, allow_inf_nan=True)
    """The ratio is clipped to at most 1 + epsilon_high; .inf leaves it open."""
    beta: float = Field(default=1e-3, ge=0)
    """Weight of the KL term; 0 switches it off and needs no reference policy."""
    aggregation: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "grpo"
    """How token losses become one number, all counts over the step's contributing captions: "grpo":
    mean over captions of each caption's token mean; "dapo": mean over all tokens; "bnpo": mean over
    the tokens of a micro-batch, then over micro-batches (the only one that depends on how the step
    is cut; in one micro-batch it is "dapo"); "dr_grpo": sum over tokens / (captions *
    max_completion_length)."""
    importance: Literal["token", "sequence", "product"] = "token"
    """Ratio per token ("token"), or one per caption: the geometric mean of its tokens' ("sequence",
    GSPO) or their product, the ratio of the captions' probabilities ("product", RLOO). The kinds
    differ where old and new policy do, that is from the second update on the same captions on, and
    with rollout.ahead; "product" also differs before, as its gradient is the sum over a caption's
    tokens and not their mean."""
    max_completion_length: int | None = Field(default=None, ge=1)
    """Tokens, for "dr_grpo"; in a run null takes that of the rollout."""
    clamp_kl: bool = False
    """Bound ref - new to +-20 and the KL to +-10 per token, as ms-swift from 4.1 on does."""

    def __post_init__(self) -> None:
        if self.importance == "product" and self.aggregation != "grpo":
            raise ValueError(
                "grpo.objective.importance product makes one loss of each caption, whose mean over captions is "
                f"grpo.objective.aggregation grpo, not {self.aggregation}"
            )
        if self.importance == "product" and self.surrogate == "cispo":
            raise ValueError(
                "grpo.objective.surrogate cispo weighs the gradient of each token, and grpo.objective.importance "
                "product has one of the whole caption: take token or sequence, or the surrogate clipped"
            )


_MOST_LOG_RATIO = 60.0
"""Of a whole caption: the sum over thousands of tokens may be more than float32 has an exponential of, and infinity
times an advantage of zero is no number. Far beyond every clip; there is no gradient from here on."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepTotals:
    """Denominators of one optimizer step, scalars.

    sequences: contributing captions. tokens: their tokens. micro_batches: how many the step is cut into.
    """

    sequences: Float[Array, ""]
    tokens: Float[Array, ""]
    micro_batches: Float[Array, ""]


def caption_mask(
    lengths: Int[Array, "*N"], contributes: Bool[Array, "*N"], length: int
) -> Bool[Array, "*N T"]:
    """The tokens that enter the loss: ``lengths`` of each caption that contributes."""
    return (jnp.arange(length) < lengths[..., None]) & contributes[..., None]


def step_totals(
    lengths: Int[Array, "*N"], contributes: Bool[Array, "*N"], micro_batches: int = 1
) -> StepTotals:
    """Denominators from all captions of a step. lengths: tokens of each caption, end token included."""
    return StepTotals(
        sequences=jnp.sum(contributes, dtype=jnp.float32),
        tokens=jnp.sum(jnp.where(contributes, lengths, 0), dtype=jnp.float32),
        micro_batches=jnp.asarray(micro_batches, jnp.float32),
    )


def k3_kl(
    new: Float[Array, "*N"], reference: Float[Array, "*N"], *, clamp: bool = False
) -> Float[Array, "*N"]:
    """Per-token estimate exp(d) - d - 1 with d = reference - new: never negative, unbiased for
    KL(new || reference) on tokens drawn from the new policy (Schulman's k3; used by TRL and ms-swift)."""
    difference = reference - new
    if clamp:
        difference = jnp.clip(difference, -20.0, 20.0)
    # expm1 keeps the digits of small differences, where exp(d) - 1 would lose them all.
    kl = jnp.expm1(difference) - difference
    return jnp.clip(kl, -10.0, 10.0) if clamp else kl


def log_ratio(
    new: Float[Array, "*N T"],
    old: Float[Array, "*N T"],
    mask: Bool[Array, "*N T"],
    level: Literal["token", "sequence", "product"],
) -> Float[Array, "*N #T"]:
    """log rho: per token, or [..., 1], the mean (GSPO, Eq. 7) or the sum over each caption's tokens."""
    difference = jnp.where(mask, new - old, 0.0)
    if level == "token":
        return difference
    total = difference.sum(-1, keepdims=True)
    return total if level == "product" else total / jnp.maximum(mask.sum(-1, keepdims=True), 1)


def clipped_surrogate(ratio: Array, advantages: Array, epsilon_low: float, epsilon_high: float) -> Array:
    """-min(rho A, clip(rho) A), elementwise; ``advantages`` must broadcast against ``ratio``."""
    lowest, highest = 1 - epsilon_low, 1 + epsilon_high
    clipped = jnp.clip(ratio, lowest, highest)
    if not (epsilon_low and epsilon_high):
        # Every ratio of 1 is on a bound. There jnp.clip has half of the gradient, and PyTorch all of it, as meant here.
        clipped = jnp.where((ratio < lowest) | (ratio > highest), jax.lax.stop_gradient(clipped), ratio)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def cispo_surrogate(
    new: Float[Array, "*N T"],
    ratio: Float[Array, "*N #T"],
    advantages: Float[Array, "*N #T"],
    epsilon_low: float,
    epsilon_high: float,
) -> Float[Array, "*N T"]:
    """-clip(rho) A log pi, without gradient through the clipped rho (MiniMax-M1, arXiv 2506.13585;
    TRL's loss_type "cispo", whose epsilon_high is 1 + ours, and which has no lower bound: epsilon_low 1). Both take the
    mean over all tokens, which is the aggregation "dapo"."""
    weights = jax.lax.stop_gradient(jnp.clip(ratio, 1 - epsilon_low, 1 + epsilon_high))
    return -weights * advantages * new


def truncated_importance_weights(
    trainer: Float[Array, "*N T"],
    rollout: Float[Array, "*N T"],
    mask: Bool[Array, "*N T"],
    *,
    cap: float,
    level: Literal["token", "sequence"] = "token",
) -> Float[Array, "*N #T"]:
    """Weights min(pi_trainer / pi_rollout, cap) that correct for a rollout engine with other numerics.

    trainer, rollout: log-probabilities of the drawn tokens under the same weights. "token" gives
    [..., T], "sequence" the product over a caption, [..., 1]. A token whose rollout log-probability is NaN
    (the engine did not report it) gets weight 1. One that only the engine's rules allow (-inf in trainer) gets 0,
    and is left out of a product: of a long caption some token always lies at the border of top-k or top-p, and would
    take the whole of it out. No gradient flows through. Else the same as TRL's *_truncate modes.
    """
    known = mask & jnp.isfinite(rollout)
    if level == "sequence":
        known = known & jnp.isfinite(trainer)
    difference = jnp.where(known, trainer - jnp.where(known, rollout, 0.0), 0.0)
    if level == "sequence":
        difference = difference.sum(-1, keepdims=True)
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(jnp.minimum(difference, _MOST_LOG_RATIO)), cap))


def aggregate(
    token_losses: Float[Array, "*N T"], mask: Bool[Array, "*N T"], totals: StepTotals, config: ObjectiveConfig
) -> Float[Array, ""]:
    """This micro-batch's share of the step's loss; the shares of a step add up to it."""
    losses = jnp.where(mask, token_losses, 0.0)
    sequences = jnp.maximum(totals.sequences, 1.0)
    if config.aggregation == "grpo":
        return (losses.sum(-1) / jnp.maximum(mask.sum(-1), 1)).sum() / sequences
    if config.aggregation == "dapo":
        return losses.sum() / jnp.maximum(totals.tokens, 1.0)
    if config.aggregation == "bnpo":
        return losses.sum() / jnp.maximum(mask.sum(), 1) / totals.micro_batches
    if config.max_completion_length is None:
        raise ValueError("objective.aggregation dr_grpo needs objective.max_completion_length")
    return losses.sum() / (sequences * config.max_completion_length)


def grpo_loss(
    new: Float[Array, "*N T"],
    advantages: Float[Array, "*N"],
    mask: Bool[Array, "*N T"],
    totals: StepTotals,
    config: ObjectiveConfig,
    *,
    old: Float[Array, "*N T"] | None = None,
    reference: Float[Array, "*N T"] | None = None,
    rollout_weights: Float[Array, "*N #T"] | None = None,
    entropy: Float[Array, "*N T"] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """This micro-batch's share of the step's loss, and of its metrics.

    new: log-probabilities of the drawn tokens under the policy in training; only they get gradients.
    mask: ``caption_mask``; what stands elsewhere, NaN included, has no effect.
    totals: the step's denominators.
    old: under the policy that sampled; default: ``new`` without gradient, exact when the batch is
        used for one update.
    reference: under the frozen reference policy, needed unless beta is 0.
    rollout_weights: per token or per caption; multiply the policy term, not the KL.
    entropy: of the policy's token distributions, for the metric alone, which there is not without it.

    Metrics (add the shares of all micro-batches): ``kl``, ``entropy``, ``ratio`` token means; ``clip_low``,
    ``clip_high`` shares of tokens (captions, unless importance is "token") whose gradient the clip removed at
    that side; with "cispo", which bounds their weight whatever the advantage is, the same are counted, as TRL does;
    ``policy_loss``, ``kl_loss`` the two terms of the loss under the same aggregation.

    Raises ValueError if beta is positive and no reference is given.
    """
    if config.beta and reference is None:
        raise ValueError(
            f"objective.beta is {config.beta} but no reference log-probabilities were given; "
            "compute them or set objective.beta to 0"
        )
    # Masked entries are replaced before any arithmetic: a mask applied afterwards would still let NaN through
    # the gradient.
    new = jnp.where(mask, new, 0.0)
    old = jax.lax.stop_gradient(new) if old is None else jnp.where(mask, old, 0.0)
    taken = mask.any(-1)
    advantages = jnp.where(taken, advantages, 0.0)[..., None]

    log_ratios = log_ratio(new, jax.lax.stop_gradient(old), mask, config.importance)
    if config.importance != "token":
        log_ratios = jnp.clip(log_ratios, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
    ratio = jnp.exp(log_ratios)
    bounds = config.epsilon_low, config.epsilon_high
    if config.surrogate == "cispo":
        policy = cispo_surrogate(new, ratio, advantages, *bounds)
    else:
        policy = clipped_surrogate(ratio, advantages, *bounds)
    if rollout_weights is not None:
        counted = mask if rollout_weights.shape == mask.shape else taken[..., None]
        weights = jnp.where(counted, rollout_weights, 0.0)
        policy = policy * jax.lax.stop_gradient(weights)
    policy_loss = aggregate(jnp.broadcast_to(policy, mask.shape), mask, totals, config)
    loss = policy_loss

    def share(x: Array) -> Array:
        x = jax.lax.stop_gradient(x)
        if x.shape[-1] == 1 and mask.shape[-1] != 1:
            return jnp.where(taken, x[..., 0], 0.0).sum() / jnp.maximum(totals.sequences, 1.0)
        return jnp.where(mask, x, 0.0).sum() / jnp.maximum(totals.tokens, 1.0)

    metrics = {
        "ratio": share(ratio),
        "clip_low": share((ratio < 1 - config.epsilon_low) & (advantages < 0)),
        "clip_high": share((ratio > 1 + config.epsilon_high) & (advantages > 0)),
        "policy_loss": jax.lax.stop_gradient(policy_loss),
    }
    if entropy is not None:
        metrics["entropy"] = share(entropy)
    if reference is not None:
        kl = k3_kl(new, jax.lax.stop_gradient(jnp.where(mask, reference, 0.0)), clamp=config.clamp_kl)
        metrics["kl"] = share(kl)
        if config.beta:
            kl_loss = config.beta * aggregate(kl, mask, totals, config)
            metrics["kl_loss"] = jax.lax.stop_gradient(kl_loss)
            loss = loss + kl_loss
    return loss, metrics
