"""The supervised update: cross-entropy on captions, several captions of one picture sharing its prompt.

Same model and same shared-prompt forward as GRPO; only the objective differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from vcap_jax.policy import Params
from vcap_jax.qwen3_vl.inputs import PromptBatch


def pad_captions(captions: Sequence[Sequence[Sequence[int]]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Token lists [B][G] -> (tokens [B, G, length] int32, lengths [B, G] int32).

    Raises ValueError if a caption is longer than ``length``: cutting it would teach an unfinished caption.
    """
    lengths = np.array([[len(caption) for caption in group] for group in captions], np.int32)
    if lengths.max() > length:
        raise ValueError(f"a caption has {lengths.max()} tokens, the budget is {length}; raise the budget")
    tokens = np.zeros((*lengths.shape, length), np.int32)
    for b, group in enumerate(captions):
        for g, caption in enumerate(group):
            tokens[b, g, : len(caption)] = caption
    return tokens, lengths


def caption_loss(
    model: Any, prompt: PromptBatch, captions: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean negative log-likelihood per caption token (nats) and its companions.

    captions: [B, G, T] int32; lengths: [B, G], the end token included. The prompt carries no loss.
    """
    features = None if prompt.vision is None else model.encode_vision(prompt.vision)
    logits = model.logits(model.caption_hidden(prompt, features, captions))
    mask = jnp.arange(captions.shape[-1]) < lengths[..., None]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, captions)
    tokens = jnp.maximum(mask.sum(), 1)
    correct = jnp.where(mask, logits.argmax(-1) == captions, False).sum()
    return jnp.where(mask, losses, 0.0).sum() / tokens, {"token_accuracy": correct / tokens}


def make_sft_step(
    graphdef: Any, optimizer: optax.GradientTransformation
) -> Callable[..., tuple[Params, Any, dict[str, jax.Array]]]:
    """A jitted ``(trainable, frozen, opt_state, prompt, captions, lengths) -> (trainable, opt_state, metrics)``;
    parameters and optimizer state are donated."""

    def loss_fn(trainable: Params, frozen: Params, *batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        return caption_loss(nnx.merge(graphdef, trainable, frozen), *batch)

    def step(trainable: Params, frozen: Params, opt_state: Any, *batch: Any) -> Any:
        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(trainable, frozen, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, trainable)
        metrics |= {"loss": loss, "grad_norm": optax.global_norm(grads)}
        return optax.apply_updates(trainable, updates), opt_state, metrics

    return jax.jit(step, donate_argnums=(0, 2))
