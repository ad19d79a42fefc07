"""The patterns of ``shared_prefix`` with all scores in memory: for small sizes, and what all else is compared with.

A caption's scores against the prompt and against itself are normalised together, nothing is merged, and
automatic differentiation does the rest.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.kernels.attention.scores import MASKED, group_heads, scores

Array = jax.Array


def causal(queries: Array, keys: Array, values: Array) -> Array:
    length = queries.shape[1]
    return _attended(queries, keys, values, jnp.tril(jnp.ones((length, length), bool)))


def grouped(
    queries: Array, keys: Array, values: Array, lengths: Array, prompt_tokens: int, group: int
) -> Array:
    batch, _, heads, dim = queries.shape
    split = [jnp.split(x, [prompt_tokens], axis=1) for x in (queries, keys, values)]
    (prompt_q, caption_q), (prompt_k, caption_k), (prompt_v, caption_v) = split
    prompt_out = causal(prompt_q, prompt_k, prompt_v)

    def by_caption(x: Array) -> Array:
        return x.reshape(batch, group, -1, *x.shape[2:])

    caption_q = by_caption(group_heads(caption_q, keys.shape[2]))  # [B, G, T, K, H / K, d]
    caption_k, caption_v = by_caption(caption_k), by_caption(caption_v)  # [B, G, T, K, d]
    tokens = caption_q.shape[2]
    to_prompt = scores("bgtkrd,bpkd->bgkrtp", caption_q, prompt_k)
    real = jnp.arange(prompt_tokens) < lengths[:, None]
    to_prompt = jnp.where(real[:, None, None, None, None, :], to_prompt, MASKED)
    to_self = scores("bgtkrd,bgskd->bgkrts", caption_q, caption_k)
    to_self = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), to_self, MASKED)
    weights = jax.nn.softmax(jnp.concatenate([to_prompt, to_self], axis=-1), axis=-1).astype(values.dtype)
    caption_out = jnp.einsum("bgkrtp,bpkd->bgtkrd", weights[..., :prompt_tokens], prompt_v)
    caption_out += jnp.einsum("bgkrts,bgskd->bgtkrd", weights[..., prompt_tokens:], caption_v)
    return jnp.concatenate([prompt_out, caption_out.reshape(batch, group * tokens, heads, dim)], axis=1)


def continued(
    queries: Array, keys: Array, values: Array, earlier_keys: Array, earlier_values: Array, start: Array
) -> Array:
    length, earlier = queries.shape[1], earlier_keys.shape[1]
    visible = jnp.concatenate(
        [
            jnp.broadcast_to(jnp.arange(earlier) < start, (length, earlier)),
            jnp.tril(jnp.ones((length, length), bool)),
        ],
        axis=1,
    )
    keys, values = (jnp.concatenate(x, axis=1) for x in ((earlier_keys, keys), (earlier_values, values)))
    return _attended(queries, keys, values, visible)


def frames(queries: Array, keys: Array, values: Array, patches: Array) -> Array:
    """But for a frame without any patch, which gives means of its padding."""
    logits = scores("nqhd,nshd->nhqs", queries, keys)
    real = jnp.arange(keys.shape[1]) < patches[:, None]
    weights = jax.nn.softmax(jnp.where(real[:, None, None, :], logits, MASKED), axis=-1).astype(values.dtype)
    return jnp.einsum("nhqs,nshd->nqhd", weights, values)


def _attended(queries: Array, keys: Array, values: Array, visible: Array) -> Array:
    """visible: [queries, keys]."""
    logits = scores("bqkrd,bskd->bkrqs", group_heads(queries, keys.shape[2]), keys)
    weights = jax.nn.softmax(jnp.where(visible, logits, MASKED), axis=-1).astype(values.dtype)
    return jnp.einsum("bkrqs,bskd->bqkrd", weights, values).reshape(queries.shape)
