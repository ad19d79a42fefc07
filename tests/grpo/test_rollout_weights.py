"""Captions of another engine in the update: equal numerics change nothing, others are weighed."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.tiny_policy import VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.grpo.mismatch import mismatch_metrics
from vcap_jax.grpo.objective import ObjectiveConfig, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.grpo.sampled_logprobs import sampled_logprobs
from vcap_jax.models.policy import split_model, vision_encoder
from vcap_jax.rollout.config import RolloutConfig, VllmConfig
from vcap_jax.rollout.sampling import SamplingConfig

GROUPS, SIZE, TOKENS = 2, 3, 5
BANNED = (5, 6, 7, 8)
SAMPLING = SamplingConfig(temperature=0.7, top_p=1.0, top_k=0, repetition_penalty=1.1)
ROLLOUT = RolloutConfig(sampling=SAMPLING, vllm=VllmConfig(importance_cap=2.0))


@pytest.fixture(scope="module")
def case():
    """(programs, parameters, prompts, features, captions whose sampler agrees with the trainer)."""
    graphdef, trainable, frozen = split_model(tiny_model(), ("visual",))
    objective = ObjectiveConfig(beta=0.0)
    update = UpdatePrograms(graphdef, objective, optax.sgd(0.1), temperature=0.7, logprob_chunk=4)
    rng = np.random.default_rng(0)
    captions = CaptionBatch(
        tokens=jnp.asarray(rng.integers(9, VOCABULARY, (GROUPS, SIZE, TOKENS)), jnp.int32),
        lengths=jnp.asarray([[5, 2, 4], [1, 3, 5]], jnp.int32),
        advantages=jnp.asarray(rng.normal(size=(GROUPS, SIZE)), jnp.float32),
        contributes=jnp.ones((GROUPS, SIZE), bool),
    )
    prompts = tiny_prompts(GROUPS)
    features = vision_encoder(graphdef)(trainable, frozen, prompts)

    @jax.jit
    def own(params):
        model = nnx.merge(graphdef, params, frozen)
        hidden = model.caption_hidden(prompts, features, captions.tokens)
        return sampled_logprobs(
            hidden,
            model.head(),
            captions.tokens,
            prompts.tokens,
            prompts.lengths,
            SAMPLING,
            banned=BANNED,
            chunk=TOKENS,
        )

    real = jnp.arange(TOKENS) < captions.lengths[..., None]
    agreeing = replace(captions, sampler_logprobs=jnp.where(real, own(trainable), jnp.nan))
    return update, trainable, frozen, prompts, features, agreeing


def gradients(case, weights):
    update, trainable, frozen, prompts, features, captions = case
    totals = step_totals(captions.lengths, captions.contributes)
    total, *_ = update.accumulate(
        trainable,
        frozen,
        update.zeros(trainable),
        prompts,
        features,
        captions,
        totals,
        None,
        None,
        weights,
    )
    return jax.tree.leaves(total)


def weights_of(case, captions, rollout=ROLLOUT):
    update, trainable, frozen, prompts, features, _ = case
    weights, moments = update.rollout_weights(rollout, BANNED)(trainable, frozen, prompts, features, captions)
    return weights, mismatch_metrics([jax.device_get(moments)])


def test_an_engine_that_agrees_changes_nothing(case):
    weights, row = weights_of(case, case[-1])
    np.testing.assert_allclose(weights, 1, atol=1e-5)
    assert row["rollout/mismatch_max"] < 1e-5
    assert row["rollout/outside"] == 0


@pytest.mark.slow
def test_weights_are_ratios_up_to_the_cap(case):
    *_, captions = case
    # The engine thought every token 1.5 times as likely, or a fifth as likely, as the trainer does.
    for factor, weight, truncated in ((1.5, 1 / 1.5, 0.0), (0.2, 2.0, 1.0)):
        shifted = replace(captions, sampler_logprobs=captions.sampler_logprobs + np.log(factor))
        weights, row = weights_of(case, shifted)
        real = np.isfinite(captions.sampler_logprobs)
        np.testing.assert_allclose(np.asarray(weights)[real], weight, rtol=1e-4)
        assert row["rollout/truncated"] == truncated
        assert row["rollout/mismatch_mean"] == pytest.approx(abs(np.log(factor)), rel=1e-4)
        ones = jnp.ones_like(weights)
        for scaled, plain in zip(gradients(case, weights), gradients(case, ones), strict=True):
            np.testing.assert_allclose(scaled, weight * plain, atol=1e-5)


def test_a_weight_per_caption(case):
    *_, captions = case
    rollout = replace(ROLLOUT, vllm=VllmConfig(importance_cap=100.0, importance_level="sequence"))
    shifted = replace(captions, sampler_logprobs=captions.sampler_logprobs - 0.1)
    weights, _ = weights_of(case, shifted, rollout)
    np.testing.assert_allclose(weights[..., 0], np.exp(0.1 * np.asarray(captions.lengths)), rtol=1e-4)
