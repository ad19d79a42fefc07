"""The sampling rules: what happens between a row of logits and the token that is drawn.

Order and meaning are those of ``transformers``' generation loop, so that captions drawn here and by a served
model have one distribution: repetition penalty, suppressed tokens, temperature, top-k, top-p. Randomness is
Gumbel noise per (seed, step, group, candidate, position, token): a caption depends neither on the prompts
that share its batch, nor on padding, nor on how devices split the work. Noise belongs to a token rather than
to its rank, so logits that differ in their last bits give the same caption; and it is a hash of these numbers, so
that it is made for the tokens in question and for no others.

The trainer's log-probabilities use logits / temperature alone; penalty, top-k and top-p never enter them, nor do they
enter ``drawn_logprobs``, which are compared with the trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.parallel.arrays import AnyArray

Array = jax.Array

_BLOCK = 128
"""Tokens among which the first round of ``best_scores`` looks for the best."""


@settings
class SamplingConfig:
    """How a token is drawn (defaults: paper, Table training-config)."""

    temperature: float = Field(default=1.0, ge=0)
    """Divides the logits; 0 means greedy decoding (the penalty still applies, as in
    transformers)."""
    top_p: float = Field(default=0.9, gt=0, le=1)
    """Keep the most likely tokens until their mass reaches this; 1 switches it off."""
    top_k: int = Field(default=50, ge=0)
    """Keep this many tokens, plus ties of the last one; 0 switches it off."""
    repetition_penalty: float = Field(default=1.05, gt=0)
    """Logits of tokens seen in prompt or caption are divided (positive) or multiplied (negative) by
    this; 1 switches it off."""


def candidate_keys(seed: int | Array, step: int | Array, group_ids: Array, group_size: int) -> Array:
    """Random keys [B, G], one per candidate, from the run's seed, the step and each group's own id [B]."""
    # The generator is named, so that a run does not change with a process-wide default.
    base = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), step)
    per_group = jax.vmap(jax.random.fold_in, (None, 0))(base, jnp.asarray(group_ids, jnp.int32))
    candidates = jnp.arange(group_size)
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(per_group, candidates)


def seen_tokens(tokens: AnyArray, lengths: AnyArray, vocab_size: int) -> Array:
    """[B, V] bool: which tokens occur among the first ``lengths[b]`` of ``tokens[b]`` ([B, P])."""
    real = jnp.arange(tokens.shape[-1]) < lengths[:, None]
    rows = jnp.arange(tokens.shape[0])[:, None]
    # Padding is sent out of range, where a scatter drops it.
    index = jnp.where(real, tokens, vocab_size)
    return jnp.zeros((tokens.shape[0], vocab_size), bool).at[rows, index].set(True, mode="drop")


def update_seen(seen: Array, tokens: Array) -> Array:
    """``seen`` [..., V] with the newly drawn ``tokens`` [...] marked."""
    flat = seen.reshape(-1, seen.shape[-1])
    rows = jnp.arange(flat.shape[0])
    return flat.at[rows, tokens.reshape(-1)].set(True, mode="drop").reshape(seen.shape)


def penalise_repetition(logits: Array, seen: Array, penalty: float) -> Array:
    """Divides positive and multiplies negative logits of ``seen`` tokens (CTRL, section 4.1; HF's rule)."""
    return jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)


def keep_likely(scores: Array, *, top_k: int, top_p: float) -> Array:
    """``scores`` [..., V] with everything outside top-k, then top-p, set to -inf; at least one token stays.

    The sets are transformers', ties included. Top-k keeps every token that ties with the k-th. Top-p sorts
    ascending and drops the prefix whose mass is at most 1 - top_p; of several tokens tied at that border some
    go and some stay, here those with the lower ids go (there the sort leaves it open which). Only the k best
    scores are ever sorted when top-k is on.
    """
    vocab = scores.shape[-1]
    top_k = min(top_k, vocab)
    if not top_k and top_p >= 1:
        return scores
    if top_k:
        return _keep_likely(scores, _top_k(scores, top_k)[0], top_p)
    best = jnp.sort(scores, axis=-1, descending=True)
    return _keep_top_p(scores, best, top_p)


def _keep_likely(scores: Array, best: Array, top_p: float) -> Array:
    """See ``keep_likely``; best: the k highest of ``scores``, descending."""
    scores = jnp.where(scores < best[..., -1:], -jnp.inf, scores)
    return scores if top_p >= 1 else _keep_top_p(scores, best, top_p)


def _keep_top_p(scores: Array, best: Array, top_p: float) -> Array:
    """See ``keep_likely``; best: the highest of ``scores``, descending."""
    threshold, dropped_ties = _top_p_border(scores, best, top_p)
    tied = scores == threshold
    tie_rank = jnp.cumsum(tied, axis=-1, dtype=jnp.int32)
    return jnp.where((scores > threshold) | (tied & (tie_rank > dropped_ties)), scores, -jnp.inf)


def _top_p_border(scores: Array, best: Array, top_p: float) -> tuple[Array, Array]:
    """The lowest score [..., 1] that top-p keeps, and how many of the tokens tied at it are dropped.

    ``best`` holds the highest scores in descending order. Tokens of ``scores`` that top-k kept beyond those
    are ties of its last entry; they come first in ascending order and are accounted for by their number.
    """
    ascending = best[..., ::-1]
    lowest = ascending[..., :1]
    weights = jnp.exp(ascending - ascending[..., -1:])
    extra = jnp.sum(scores == lowest, -1, keepdims=True) - jnp.sum(best == lowest, -1, keepdims=True)
    total = weights.sum(-1, keepdims=True) + extra * weights[..., :1]
    probabilities = weights / total
    mass_of_one = probabilities[..., :1]
    mass = extra * mass_of_one + jnp.cumsum(probabilities, axis=-1)
    limit = 1 - top_p
    drop = (mass <= limit).at[..., -1].set(False)
    # The first n extra ties have mass n * mass_of_one; all of them go if any entry after them goes.
    extra_dropped = jnp.where(
        drop[..., :1], extra, jnp.minimum(extra, jnp.floor(limit / mass_of_one)).astype(extra.dtype)
    )
    kept_first = drop.sum(-1, keepdims=True)
    threshold = jnp.take_along_axis(ascending, kept_first, axis=-1)
    below = jnp.sum(best < threshold, -1, keepdims=True) + jnp.where(lowest < threshold, extra, 0)
    return threshold, kept_first + extra_dropped - below


def sampling_scores(
    logits: Array, config: SamplingConfig, *, seen: Array | None = None, banned: Sequence[int] = ()
) -> Array:
    """What the softmax of sampling sees: float32 scores [..., V], -inf where a token cannot be drawn.

    logits: [..., V]. seen: [..., V] bool, needed unless the penalty is 1. banned: token ids never drawn.
    With temperature 0 the warpers are left out: only the penalty and the ban apply.
    Raises ValueError if the repetition penalty is on and ``seen`` is missing.
    """
    scores = allowed_scores(logits, config, seen=seen, banned=banned)
    if config.temperature == 0:
        return scores
    return keep_likely(scores / config.temperature, top_k=config.top_k, top_p=config.top_p)


def allowed_scores(
    logits: Array, config: SamplingConfig, *, seen: Array | None, banned: Sequence[int]
) -> Array:
    """Penalty and ban alone; see ``sampling_scores``."""
    scores = logits.astype(jnp.float32)
    if config.repetition_penalty != 1.0:
        if seen is None:
            raise ValueError(
                f"repetition_penalty is {config.repetition_penalty} but no mask of seen tokens was given; "
                "keep one with seen_tokens and update_seen"
            )
        scores = penalise_repetition(scores, seen, config.repetition_penalty)
    if banned:
        # A comparison per token and banned id, which fuses with the rest; a scatter would be a pass of its own.
        token = jnp.arange(scores.shape[-1])
        scores = jnp.where((token[:, None] == jnp.asarray(tuple(banned))).any(-1), -jnp.inf, scores)
    return scores


def _top_k(scores: Array, count: int) -> tuple[Array, Array]:
    """``jax.lax.top_k``, in the two dimensions for which XLA's CPU backend has more than a sort."""
    best, tokens = jax.lax.top_k(scores.reshape(-1, scores.shape[-1]), count)
    shape = (*scores.shape[:-1], count)
    return best.reshape(shape), tokens.reshape(shape)


def best_scores(scores: Array, count: int) -> tuple[Array, Array]:
    """The ``count`` highest of ``scores`` [..., V], descending, and their tokens: two arrays [..., count].

    Equal to ``jax.lax.top_k`` but for which of the tokens tied with the last one are named. In two rounds: a block of
    tokens with one of the ``count`` best is among the ``count`` blocks with the best maxima. Sorting, which is what
    top-k comes to on accelerators, then meets V / 128 + 128 count numbers instead of V.
    """
    vocab = scores.shape[-1]
    if vocab < 4 * _BLOCK * count:
        return _top_k(scores, count)
    padding = [(0, 0)] * (scores.ndim - 1) + [(0, -vocab % _BLOCK)]
    blocks = jnp.pad(scores, padding, constant_values=-jnp.inf).reshape(*scores.shape[:-1], -1, _BLOCK)
    # In ascending order of the tokens, so that ties are resolved as in one round.
    chosen = jnp.sort(_top_k(blocks.max(-1), count)[1], axis=-1)
    kept = jnp.take_along_axis(blocks, chosen[..., None], axis=-2).reshape(*scores.shape[:-1], -1)
    best, place = _top_k(kept, count)
    block = jnp.take_along_axis(chosen, place // _BLOCK, axis=-1)
    return best, block * _BLOCK + place % _BLOCK


def gumbel_noise(keys: Array, position: Array, tokens: Array) -> Array:
    """Standard Gumbel noise float32 [..., n] of ``tokens`` int32 [..., n] at caption ``position`` [...].

    keys: [...] from ``candidate_keys``. A hash (Threefry, as in ``jax.random``) of the three, each value by itself. It
    has 23 random bits, so it is at most 16.6: tokens of a probability below 1e-7, which only a draw from the whole
    vocabulary meets, are drawn more rarely than that, and below 1e-8 hardly ever.
    """
    words = jax.random.key_data(keys)[..., None, :]
    shape = jnp.broadcast_shapes(tokens.shape, (*keys.shape, 1))
    operands = (
        words[..., 0],
        words[..., 1],
        tokens.astype(jnp.uint32),
        position[..., None].astype(jnp.uint32),
    )
    bits = threefry2x32_p.bind(*(jnp.broadcast_to(x, shape) for x in operands))[0]
    # 23 random bits as a number in (0, 1): never 0, never 1.
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    return -jnp.log(-jnp.log(uniform))


def sample(
    logits: Array,
    keys: Array,
    position: int | Array,
    config: SamplingConfig,
    *,
    seen: Array | None = None,
    banned: Sequence[int] = (),
) -> Array:
    """Draws one token per row: int32 [...].

    logits: [..., V]; keys: [...] from ``candidate_keys``; position: [...] or a scalar, the caption position to fill;
    seen, banned: as for ``sampling_scores``. Temperature 0 takes the highest score, the lowest id among ties.

    With top-k only the k best scores go through top-p and get noise. Where more tokens tie with the k-th than fit, all
    of them are looked at; the outcome does not depend on which way was taken.
    """
    if config.temperature == 0:
        scores = sampling_scores(logits, config, seen=seen, banned=banned)
        return jnp.argmax(scores, axis=-1).astype(jnp.int32)
    position = jnp.broadcast_to(jnp.asarray(position, jnp.int32), keys.shape)
    scores = allowed_scores(logits, config, seen=seen, banned=banned) / config.temperature
    every = jnp.arange(scores.shape[-1])

    def drawn_of_all(kept: Array) -> Array:
        return jnp.argmax(kept + gumbel_noise(keys, position, every), axis=-1).astype(jnp.int32)

    if not config.top_k or config.top_k >= scores.shape[-1]:
        return drawn_of_all(keep_likely(scores, top_k=config.top_k, top_p=config.top_p))
    best, tokens = best_scores(scores, config.top_k)

    def among_all(scores: Array) -> Array:
        # Nothing is sorted again: XLA then takes the GPU's own branch, and the host need not look which way to go.
        return drawn_of_all(_keep_likely(scores, best, config.top_p))

    def among_best(_: Array) -> Array:
        kept = best if config.top_p >= 1 else _keep_top_p(best, best, config.top_p)
        drawn = jnp.argmax(kept + gumbel_noise(keys, position, tokens), axis=-1, keepdims=True)
        return jnp.take_along_axis(tokens, drawn, axis=-1)[..., 0].astype(jnp.int32)

    last = best[..., -1:]
    left_out = (scores == last).sum(-1) > (best == last).sum(-1)
    return jax.lax.cond(left_out.any(), among_all, among_best, scores)


def drawn_logprobs(logits: Array, tokens: Array, temperature: float) -> Array:
    """log softmax(logits / temperature) at ``tokens`` [...], over the whole vocabulary: float32 [...].

    logits: [..., V]. Not what a token was drawn with, but what the trainer calls its log-probability
    (``training.logprobs``). Raises ValueError if the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature is {temperature}; log-probabilities need a positive one (greedy has none)"
        )
    scores = logits.astype(jnp.float32) / temperature
    # Relative to the largest, as the trainer's: one near 0 keeps its digits.
    scores -= scores.max(-1, keepdims=True)
    chosen = jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
    return chosen - jnp.log(jnp.exp(scores).sum(-1))
