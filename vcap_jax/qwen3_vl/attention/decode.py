"""Attention of one new token of each caption: the group is a batch axis of the queries only."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.qwen3_vl.attention.scores import MASKED, group_heads, scores
from vcap_jax.qwen3_vl.products import einsum_float32

Array = jax.Array


def decode(
    queries: Array,
    prompt_keys: Array,
    prompt_values: Array,
    lengths: Array,
    caption_keys: Array,
    caption_values: Array,
    step: Array,
) -> Array:
    """One new token of each of the G captions of each group.

    The group is a batch axis of the queries only: a prompt's keys and values are read once for all G.

    Args:
        queries: [B, G, H, d].
        prompt_keys, prompt_values: [B, K, P, d].
        lengths: [B] int32, real prompt tokens.
        caption_keys, caption_values: [B, G, K, T, d], slots 0..step filled.
        step: int32 scalar.

    Returns:
        [B, G, H, d].
    """
    prompt_tokens, slots = prompt_keys.shape[2], caption_keys.shape[3]
    grouped_queries = group_heads(queries, prompt_keys.shape[1])  # [B, G, K, R, d]
    to_prompt = scores("bgkrd,bkpd->bgkrp", grouped_queries, prompt_keys)
    to_self = scores("bgkrd,bgktd->bgkrt", grouped_queries, caption_keys)
    real = jnp.arange(prompt_tokens) < lengths[:, None]
    to_prompt = jnp.where(real[:, None, None, None, :], to_prompt, MASKED)
    to_self = jnp.where(jnp.arange(slots) <= step, to_self, MASKED)
    # One softmax over both, without the copies that joining them would cost: a common maximum and a common sum.
    largest = jnp.maximum(to_prompt.max(-1, keepdims=True), to_self.max(-1, keepdims=True))
    to_prompt, to_self = jnp.exp(to_prompt - largest), jnp.exp(to_self - largest)
    total = to_prompt.sum(-1, keepdims=True) + to_self.sum(-1, keepdims=True)

    def weigh(equation: str, weights: Array, values: Array) -> Array:
        return einsum_float32(equation, weights.astype(values.dtype), values)

    out = weigh("bgkrp,bkpd->bgkrd", to_prompt, prompt_values)
    out += weigh("bgkrt,bgktd->bgkrd", to_self, caption_values)
    return (out / total).astype(queries.dtype).reshape(queries.shape)
