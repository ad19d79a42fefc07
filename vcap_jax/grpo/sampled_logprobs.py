"""Log-probabilities of drawn tokens under the sampling rules, by the trainer's own arithmetic.

The objective knows logits / temperature alone, whichever engine drew the captions. A rollout server
reports the log-probabilities of what it drew from: with repetition penalty, temperature, top-k, top-p
and the ban applied, renormalised over the tokens that are left. The two differ, even for the same
logits, by the mass that the rules cut off. So the trainer computes the server's kind as well. What
then remains is the difference of the engines, and importance weights correct that alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from vcap_jax.kernels.matmul import einsum_float32
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.rollout.sampling import SamplingConfig, sampling_scores

Array = jax.Array

_PROMPT = -1


def first_occurrence(prompt: AnyArray, prompt_lengths: AnyArray, captions: Array, vocabulary: int) -> Array:
    """[B, G, V] int32: the caption position at which each token first stands; -1 if it is in the prompt, the caption
    length T if it is nowhere.

    prompt: [B, P]; prompt_lengths: [B]; captions: [B, G, T].
    """
    groups, size, length = captions.shape
    first = jnp.full((groups, size, vocabulary), length, jnp.int32)
    rows, columns = jnp.arange(groups)[:, None, None], jnp.arange(size)[:, None]
    first = first.at[rows, columns, captions].min(jnp.arange(length), mode="drop")
    real = jnp.arange(prompt.shape[-1]) < prompt_lengths[:, None]
    # Padding is sent out of range, where a scatter drops it.
    index = jnp.where(real, prompt, vocabulary)
    in_prompt = jnp.zeros((groups, vocabulary), bool).at[rows[..., 0], index].set(True, mode="drop")
    return jnp.where(in_prompt[:, None], _PROMPT, first)


def sampled_logprobs(
    hidden: Array,
    head: Array,
    captions: Array,
    prompt: AnyArray,
    prompt_lengths: AnyArray,
    sampling: SamplingConfig,
    *,
    banned: Sequence[int],
    chunk: int,
) -> Array:
    """Log-probability of every token under the distribution it would be drawn from: float32 [B, G, T].

    hidden: [B, G, T, D], entry t predicts token t; head: [D, V]; captions: [B, G, T]; prompt: [B, P] with
    prompt_lengths [B]. -inf for a token that the rules exclude. chunk: positions whose scores exist at a time.
    """
    length = captions.shape[-1]
    chunk = min(chunk, length)
    chunks = math.ceil(length / chunk)
    padding = [(0, 0), (0, 0), (0, chunks * chunk - length)]
    first = first_occurrence(prompt, prompt_lengths, captions, head.shape[-1])
    hidden = jnp.pad(hidden, [*padding, (0, 0)])
    tokens = jnp.pad(captions, padding)

    def of_chunk(start: Array) -> Array:
        part = jax.lax.dynamic_slice_in_dim(hidden, start, chunk, axis=2)
        targets = jax.lax.dynamic_slice_in_dim(tokens, start, chunk, axis=2)
        logits = einsum_float32("...d,dv->...v", part, head.astype(part.dtype))
        seen = None
        if sampling.repetition_penalty != 1.0:
            seen = first[:, :, None] < (start + jnp.arange(chunk))[:, None]
        logprobs = jax.nn.log_softmax(sampling_scores(logits, sampling, seen=seen, banned=banned))
        return jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0]

    parts = jax.lax.map(of_chunk, jnp.arange(chunks) * chunk)
    return jnp.moveaxis(parts, 0, 2).reshape(*captions.shape[:2], chunks * chunk)[..., :length]
