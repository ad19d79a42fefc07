"""Attention of a stretch of a prompt whose beginning has been computed: what prefill in chunks is made of."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.kernels.attention import dense
from vcap_jax.kernels.attention.kernel import Kernel

Array = jax.Array


def continued(
    queries: Array,
    keys: Array,
    values: Array,
    earlier_keys: Array,
    earlier_values: Array,
    start: Array,
    kernel: Kernel,
) -> Array:
    """Every token sees itself, what came before it in the stretch, and all ``start`` tokens before the stretch.

    Forward only: two parts of one softmax, merged by their log-sum-exps, or all scores in memory.

    Args:
        queries: [B, S, H, d]; keys, values: [B, S, K, d], the stretch.
        earlier_keys, earlier_values: [B, P, K, d], of which the first ``start`` are filled.
        start: int32 scalar.

    Returns:
        [B, S, H, d].
    """
    batch, length, heads, _ = queries.shape
    parts = kernel.parts(batch * heads * length * (earlier_keys.shape[1] + length))
    if parts is None:
        return dense.continued(queries, keys, values, earlier_keys, earlier_values, start)
    lengths = jnp.full(batch, start, jnp.int32)
    inside, inside_lse = parts.forward(queries, keys, values, None, causal=True)
    before, before_lse = parts.forward(queries, earlier_keys, earlier_values, lengths, causal=False)
    # In the first stretch there is nothing before, and what a kernel makes of that is left open.
    nothing = start == 0
    before = jnp.where(nothing, jnp.zeros((), before.dtype), before)
    before_lse = jnp.where(nothing, -jnp.inf, before_lse)
    share = jnp.swapaxes(jax.nn.sigmoid(before_lse - inside_lse), 1, 2)[..., None]
    out = inside.astype(jnp.float32) * (1 - share) + before.astype(jnp.float32) * share
    return out.astype(queries.dtype)
