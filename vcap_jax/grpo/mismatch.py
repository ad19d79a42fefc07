"""How far a rollout engine's log-probabilities lie from the trainer's, as numbers for the log.

Which ones, depends on the engine. Those of vLLM are under the sampling rules, as importance weights need them, and the
trainer computes its own under the same rules. Those of the JAX sampler are what the loss calls log-probabilities, over
the whole vocabulary, so that the trainer has them already.

Moments are sums, so those of a step's micro-batches add up (their maxima excepted) and nothing per token leaves the
devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import jax.numpy as jnp

from vcap_jax.grpo.objective import Array

Moments = dict[str, Array]


def mismatch_moments(
    trainer: Array,
    sampler: Array,
    mask: Array,
    *,
    cap: float | None = None,
    level: Literal["token", "sequence"] = "token",
) -> Moments:
    """Scalars of one micro-batch for ``mismatch_metrics``.

    trainer, sampler: [..., T] log-probabilities of the drawn tokens, both of the same kind; -inf in ``trainer`` for a
    token that its rules exclude. mask: [..., T] bool, the real tokens. cap, level: of the importance weights; None
    where there are none.
    """
    mask = mask & jnp.isfinite(sampler)
    shared = mask & jnp.isfinite(trainer)
    ours, theirs = jnp.where(shared, trainer, 0.0), jnp.where(shared, sampler, 0.0)
    difference = ours - theirs
    weights: Moments = {}
    if cap is not None:
        weighed = difference if level == "token" else difference.sum(-1, keepdims=True)
        weights["truncated"] = jnp.sum(shared & (weighed > math.log(cap)), dtype=jnp.float32)
    return weights | {
        "tokens": jnp.sum(mask, dtype=jnp.float32),
        "shared": jnp.sum(shared, dtype=jnp.float32),
        "absolute": jnp.abs(difference).sum(),
        "max": jnp.abs(difference).max(),
        "ours": ours.sum(),
        "ours2": (ours**2).sum(),
        "theirs": theirs.sum(),
        "theirs2": (theirs**2).sum(),
        "difference": difference.sum(),
        "difference2": (difference**2).sum(),
    }


def mismatch_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of the moments of all micro-batches of a step:

    ``rollout/mismatch_mean``, ``_max``: of |trainer - sampler|, in nats. ``rollout/mismatch_correlation``: Pearson's,
    of the two; NaN if either is constant. Where there are importance weights, ``rollout/truncated``: share of tokens
    whose ratio of probabilities, or whose caption's where a caption has one weight, exceeds the cap; and
    ``rollout/outside``: share of tokens that were drawn although the trainer's rules exclude them (the border of top-k
    or top-p); their weight is 0, and they enter no other number. Nothing of a step without tokens to learn from, or
    without an engine's log-probabilities.
    """
    if not any(float(part["tokens"]) for part in parts):
        return {}
    total = {name: sum(float(part[name]) for part in parts) for name in parts[0] if name != "max"}
    tokens, shared = total["tokens"], max(total["shared"], 1.0)

    def variance(name: str) -> float:
        return max(total[name + "2"] / shared - (total[name] / shared) ** 2, 0.0)

    # From the variance of the difference rather than the product: a correlation near 1 keeps its digits.
    spread = 2 * math.sqrt(variance("ours") * variance("theirs"))
    both = variance("ours") + variance("theirs") - variance("difference")
    row = {
        "rollout/mismatch_mean": total["absolute"] / shared,
        "rollout/mismatch_max": max(float(part["max"]) for part in parts),
        "rollout/mismatch_correlation": both / spread if spread else math.nan,
    }
    if "truncated" in total:
        row["rollout/truncated"] = total["truncated"] / tokens
        row["rollout/outside"] = 1 - total["shared"] / tokens
    return row
