"""The supervised update: loss on the caption only, and it learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.tiny_policy import VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.sft.step import caption_loss, make_sft_step, pad_captions


def batch():
    rng = np.random.default_rng(0)
    captions = [
        [rng.integers(9, VOCABULARY, rng.integers(2, 6)).tolist() for _ in range(2)] for _ in range(2)
    ]
    return pad_captions(captions, 6)


def test_loss_is_the_mean_over_caption_tokens():
    model, prompts, (tokens, lengths) = tiny_model(), tiny_prompts(2), batch()
    loss, metrics = caption_loss(model, prompts, jnp.asarray(tokens), jnp.asarray(lengths))
    hidden = model.caption_hidden(prompts, model.encode_vision(prompts.vision), jnp.asarray(tokens))
    logprobs = np.asarray(jax.nn.log_softmax(model.logits(hidden)))
    picked = [
        logprobs[b, g, t, tokens[b, g, t]] for b in range(2) for g in range(2) for t in range(lengths[b, g])
    ]
    assert float(loss) == pytest.approx(-np.mean(picked), rel=1e-5)
    assert 0 <= float(metrics["token_accuracy"]) <= 1


def test_padding_carries_no_loss():
    model, prompts, (tokens, lengths) = tiny_model(), tiny_prompts(2), batch()
    changed = np.where(np.arange(6) < lengths[..., None], tokens, 11).astype(np.int32)
    losses = [
        caption_loss(model, prompts, jnp.asarray(t), jnp.asarray(lengths))[0] for t in (tokens, changed)
    ]
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-6)


def test_a_few_updates_lower_the_loss():
    graphdef, params = nnx.split(tiny_model())
    optimizer = optax.adam(1e-2)
    step, opt_state = make_sft_step(graphdef, optimizer), optimizer.init(params)
    losses = []
    for _ in range(12):
        params, opt_state, metrics = step(params, nnx.State({}), opt_state, tiny_prompts(2), *batch())
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.7 * losses[0]


def test_a_caption_beyond_the_budget_is_refused():
    with pytest.raises(ValueError, match="raise the budget"):
        pad_captions([[[1, 2, 3]]], 2)
