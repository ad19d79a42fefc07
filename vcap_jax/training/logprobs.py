"""Log-probabilities of given tokens, in chunks of positions, as pure functions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from vcap_jax.kernels.matmul import einsum_float32

Array = jax.Array


def token_logprobs(
    hidden: Float[Array, "*N T D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "*N T"],
    *,
    temperature: float = 1.0,
    chunk: int | None = 128,
) -> Float[Array, "*N T"]:
    """log softmax(hidden @ head / temperature) at ``targets``, in float32.

    head: the transposed embedding if tied.
    chunk: positions of every row computed at a time; None takes all at once. Logits of one chunk exist at a
        time, [..., chunk, V], in the backward pass as well, where they are computed again. The position axis
        is cut and not the leading ones, so rows sharded over devices stay where they are.
    Raises ValueError if the temperature is not positive.
    """
    return token_statistics(hidden, head, targets, temperature=temperature, chunk=chunk, with_entropy=False)[
        0
    ]


def token_statistics(
    hidden: Float[Array, "*N T D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "*N T"],
    *,
    temperature: float = 1.0,
    chunk: int | None = 128,
    with_entropy: bool = True,
) -> tuple[Float[Array, "*N T"], Float[Array, "*N T"] | None]:
    """``token_logprobs`` and the entropy (nats, no gradient) of each token's distribution.

    Arguments and errors as for ``token_logprobs``; the entropy is None if ``with_entropy`` is False.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature is {temperature}; log-probabilities need a positive one (greedy has none)"
        )

    @jax.checkpoint
    def of_chunk(hidden: Array, targets: Array) -> tuple[Array, Array | None]:
        logits = einsum_float32("...d,dv->...v", hidden, head.astype(hidden.dtype)) / temperature
        # Relative to the largest: a log-probability near 0 then keeps its digits whatever the logits' level.
        logits -= jax.lax.stop_gradient(logits.max(-1, keepdims=True))
        normaliser = jnp.log(jnp.exp(logits).sum(-1))
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - normaliser
        if not with_entropy:
            return chosen, None
        logprobs = jax.lax.stop_gradient(logits - normaliser[..., None])
        return chosen, jax.scipy.special.entr(jnp.exp(logprobs)).sum(-1)

    length = targets.shape[-1]
    if chunk is None or chunk >= length:
        return of_chunk(hidden, targets)
    chunks = math.ceil(length / chunk)
    pad = chunks * chunk - length

    def cut(x: Array, axis: int) -> Array:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, pad)
        x = jnp.pad(x, widths)
        x = x.reshape(*x.shape[:axis], chunks, chunk, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    def joined(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, -2)
        return x.reshape(*x.shape[:-2], chunks * chunk)[..., :length]

    axis = targets.ndim - 1
    results = jax.lax.map(lambda pair: of_chunk(*pair), (cut(hidden, axis), cut(targets, axis)))
    return jax.tree.map(joined, results)
