"""The patterns of whole sequences, put together from a kernel's parts: causal, grouped, frames, and the causal one of a
prompt that is computed in stretches (continued).

Nothing here is ever as large as queries times keys. A group [prompt | caption 1 | ... | caption G]
is three products: the prompt with itself (causal), all captions with the real part of the prompt
(dense), each caption with itself (causal). The last two are parts of one softmax and are merged by
their log-sum-exps. That merge has no gradient of its own: each pattern is one differentiable
function whose backward pass gives the merged output and log-sum-exp to the backward pass of each
part. It keeps q, k, v, output and log-sum-exp and nothing else.

Queries have H heads, keys and values K <= H heads (grouped queries: query head h reads key head h
// (H / K)).

The least that it costs, for a prompt of P tokens and G captions of T: P^2 / 2 + G T P + G T^2 / 2
pairs that see each other, per query head. A pair costs 4 d FLOPs forward and 10 d backward, where
the scores are computed again. A packed causal mask would pay for all (P + G T)^2 / 2 pairs. What is
kept for the backward pass is 2 (2 H + 2 K) d + 4 H bytes a token and layer in bfloat16: 0.96 GB a
layer for a group of 14,000 + 8 x 4,096 tokens at 8B, which is why layers are computed twice
(``model.remat``).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from vcap_jax.kernels.attention import dense
from vcap_jax.kernels.attention.kernel import Attended, Kernel, Parts
from vcap_jax.kernels.attention.scores import MASKED

Array = jax.Array

OUTPUT, LOG_SUM_EXP = "attention_output", "attention_log_sum_exp"
"""Names that a rematerialisation policy can keep: with both, the backward pass computes no attention twice."""


def causal(queries: Array, keys: Array, values: Array, kernel: Kernel) -> Array:
    """Every token sees itself and what came before it. Right padding needs no mask: nothing real sees it.

    queries: [B, S, H, d]; keys, values: [B, S, K, d].
    Returns [B, S, H, d].
    """
    batch, length, heads, _ = queries.shape
    parts = kernel.parts(batch * heads * length**2)
    if parts is None:
        return dense.causal(queries, keys, values)
    return _single(parts, True, queries, keys, values, None)


def frames(queries: Array, keys: Array, values: Array, patches: Array, kernel: Kernel) -> Array:
    """Vision attention: every patch sees all real patches of its own frame; a frame without any gives zeros.

    queries, keys, values: [N, L, H, d].
    patches: [N] int32, real patches of each frame.
    Returns [N, L, H, d].
    """
    count, length, heads, _ = queries.shape
    parts = kernel.parts(count * heads * length**2)
    if parts is None:
        return dense.frames(queries, keys, values, patches)
    return _single(parts, False, queries, keys, values, patches)


def grouped(
    queries: Array,
    keys: Array,
    values: Array,
    lengths: Array,
    prompt_tokens: int,
    group: int,
    kernel: Kernel,
) -> Array:
    """The shared-prefix pattern of a group laid out as [prompt | caption 1 | ... | caption G].

    The prompt is causal; caption tokens see the real part of the prompt and the past of their own caption.

    queries: [B, P + G * T, H, d]; keys, values: [B, P + G * T, K, d].
    lengths: [B] int32, real prompt tokens (the rest of P is padding).
    prompt_tokens: P.
    group: G.
    Returns [B, P + G * T, H, d].
    """
    batch, length, heads, _ = queries.shape
    caption_tokens = length - prompt_tokens
    scores = prompt_tokens**2 + caption_tokens * (prompt_tokens + caption_tokens // group)
    parts = kernel.parts(batch * heads * scores)
    if parts is None:
        return dense.grouped(queries, keys, values, lengths, prompt_tokens, group)
    return _grouped(parts, prompt_tokens, group, queries, keys, values, lengths)


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

    queries: [B, S, H, d]; keys, values: [B, S, K, d], the stretch.
    earlier_keys, earlier_values: [B, P, K, d], of which the first ``start`` are filled.
    start: int32 scalar.
    Returns [B, S, H, d].
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


def _named(out: Array, lse: Array) -> tuple[Array, Array]:
    return checkpoint_name(out, OUTPUT), checkpoint_name(lse, LOG_SUM_EXP)


def _without_keys(lengths: Array) -> Array:
    """[N, 1, 1] bool, against log-sum-exps: rows that see nothing."""
    return (lengths <= 0)[:, None, None]


def _forward(
    parts: Parts, causal: bool, queries: Array, keys: Array, values: Array, lengths: Array | None
) -> tuple[Array, Array]:
    """A part, with zeros and a log-sum-exp of (nearly) minus infinity for rows that see nothing."""
    out, lse = parts.forward(queries, keys, values, lengths, causal=causal)
    if lengths is None:
        return out, lse
    out = jnp.where(_without_keys(lengths)[..., None], jnp.zeros((), out.dtype), out)
    return out, jnp.where(_without_keys(lengths), MASKED, lse)


def _backward(parts: Parts, causal: bool, attended: Attended, gradient: Array) -> tuple[Array, Array, Array]:
    """A part's gradients; those of rows that see nothing are zero: exp(score - huge) is."""
    if attended.lengths is not None:
        attended = attended._replace(lse=jnp.where(_without_keys(attended.lengths), -MASKED, attended.lse))
    return parts.backward(attended, gradient, causal=causal)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _single(
    parts: Parts, causal: bool, queries: Array, keys: Array, values: Array, lengths: Array | None
) -> Array:
    return _forward(parts, causal, queries, keys, values, lengths)[0].astype(queries.dtype)


def _single_forward(
    parts: Parts, causal: bool, queries: Array, keys: Array, values: Array, lengths: Array | None
) -> tuple[Array, Attended]:
    out, lse = _forward(parts, causal, queries, keys, values, lengths)
    out, lse = _named(out.astype(queries.dtype), lse)
    return out, Attended(queries, keys, values, lengths, out, lse)


def _single_backward(
    parts: Parts, causal: bool, attended: Attended, gradient: Array
) -> tuple[Array, Array, Array, None]:
    gradients = _backward(parts, causal, attended, gradient)
    d_queries, d_keys, d_values = (g.astype(gradient.dtype) for g in gradients)
    return d_queries, d_keys, d_values, None


_single.defvjp(_single_forward, _single_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _grouped(
    parts: Parts,
    prompt_tokens: int,
    group: int,
    queries: Array,
    keys: Array,
    values: Array,
    lengths: Array,
) -> Array:
    return _grouped_forward(parts, prompt_tokens, group, queries, keys, values, lengths)[0]


def _split(x: Array, prompt_tokens: int, group: int) -> tuple[Array, Array, Array]:
    """[B, P + G * T, ...] -> prompt [B, P, ...], captions in a row [B, G * T, ...] and apart [B * G, T, ...]."""
    captions = x[:, prompt_tokens:]
    return x[:, :prompt_tokens], captions, captions.reshape(x.shape[0] * group, -1, *x.shape[2:])


def _split_lse(lse: Array, prompt_tokens: int, group: int) -> tuple[Array, Array, Array]:
    """The same of [B, H, P + G * T]."""
    captions = lse[..., prompt_tokens:]
    batch, heads, _ = lse.shape
    apart = captions.reshape(batch, heads, group, -1).swapaxes(1, 2)
    return lse[..., :prompt_tokens], captions, apart.reshape(batch * group, heads, -1)


def _grouped_forward(
    parts: Parts,
    prompt_tokens: int,
    group: int,
    queries: Array,
    keys: Array,
    values: Array,
    lengths: Array,
) -> tuple[Array, Attended]:
    batch, _, heads, _ = queries.shape
    (prompt_q, row_q, apart_q), (prompt_k, _, apart_k), (prompt_v, _, apart_v) = (
        _split(x, prompt_tokens, group) for x in (queries, keys, values)
    )
    prompt_out, prompt_lse = _forward(parts, True, prompt_q, prompt_k, prompt_v, None)
    to_prompt, to_prompt_lse = _forward(parts, False, row_q, prompt_k, prompt_v, lengths)
    to_self, to_self_lse = _forward(parts, True, apart_q, apart_k, apart_v, None)
    to_self = to_self.reshape(to_prompt.shape)
    to_self_lse = to_self_lse.reshape(batch, group, heads, -1).swapaxes(1, 2).reshape(to_prompt_lse.shape)

    lse = jnp.logaddexp(to_prompt_lse, to_self_lse)

    def share(out: Array, part: Array) -> Array:
        return out.astype(jnp.float32) * jnp.exp(part - lse).swapaxes(1, 2)[..., None]

    captions = share(to_prompt, to_prompt_lse) + share(to_self, to_self_lse)
    out = jnp.concatenate([prompt_out.astype(queries.dtype), captions.astype(queries.dtype)], axis=1)
    out, lse = _named(out, jnp.concatenate([prompt_lse, lse], axis=2))
    return out, Attended(queries, keys, values, lengths, out, lse)


def _grouped_backward(
    parts: Parts, prompt_tokens: int, group: int, attended: Attended, gradient: Array
) -> tuple[Array, Array, Array, None]:
    queries, keys, values, lengths, out, lse = attended
    q, k, v, o, g = (_split(x, prompt_tokens, group) for x in (queries, keys, values, out, gradient))
    logs = _split_lse(lse, prompt_tokens, group)
    prompt = _backward(parts, True, Attended(q[0], k[0], v[0], None, o[0], logs[0]), g[0])
    to_prompt = _backward(parts, False, Attended(q[1], k[0], v[0], lengths, o[1], logs[1]), g[1])
    to_self = _backward(parts, True, Attended(q[2], k[2], v[2], None, o[2], logs[2]), g[2])

    def add(left: Array, right: Array) -> Array:
        return (left.astype(jnp.float32) + right.astype(jnp.float32)).astype(gradient.dtype)

    def join(prompt: Array, captions: Array) -> Array:
        captions = captions.reshape(prompt.shape[0], -1, *prompt.shape[2:])
        return jnp.concatenate([prompt.astype(gradient.dtype), captions.astype(gradient.dtype)], axis=1)

    d_queries = join(prompt[0], add(to_prompt[0], to_self[0].reshape(to_prompt[0].shape)))
    d_keys, d_values = (join(add(prompt[i], to_prompt[i]), to_self[i]) for i in (1, 2))
    return d_queries, d_keys, d_values, None


_grouped.defvjp(_grouped_forward, _grouped_backward)
