"""Log-probabilities under the sampling rules: against the rules written out token by token, and what was drawn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.grpo.sampled_logprobs import first_occurrence, sampled_logprobs
from vcap_jax.rollout.sampling import SamplingConfig, candidate_keys, sample, seen_tokens, update_seen

B, G, T, D, V, P = 2, 3, 7, 4, 30, 5
BANNED = (3, 4)
RULES = [
    SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0),
    SamplingConfig(temperature=0.7, top_p=0.8, top_k=0, repetition_penalty=1.0),
    SamplingConfig(temperature=1.3, top_p=1.0, top_k=6, repetition_penalty=1.2),
    SamplingConfig(temperature=1.0, top_p=0.9, top_k=10, repetition_penalty=1.05),
]


of_captions = jax.jit(sampled_logprobs, static_argnums=5, static_argnames=("banned", "chunk"))


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(B, G, T, D)).astype(np.float32)
    head = (2 * rng.normal(size=(D, V))).astype(np.float32)
    captions = rng.integers(0, V, (B, G, T)).astype(np.int32)
    prompt = rng.integers(0, V, (B, P)).astype(np.int32)
    return hidden, head, captions, prompt, np.array([P, 2], np.int32)


def written_out(inputs, rules: SamplingConfig) -> np.ndarray:
    """One token at a time: penalise, ban, heat, keep the k best, keep the likely mass, normalise."""
    hidden, head, captions, prompt, lengths = inputs
    result = np.empty(captions.shape)
    for b, g, t in np.ndindex(captions.shape):
        logits = hidden[b, g, t].astype(np.float64) @ head
        for token in {*prompt[b, : lengths[b]].tolist(), *captions[b, g, :t].tolist()}:
            penalty = rules.repetition_penalty
            logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
        logits[list(BANNED)] = -np.inf
        logits /= rules.temperature
        if rules.top_k:
            logits[logits < np.sort(logits)[-rules.top_k]] = -np.inf
        if rules.top_p < 1:
            order = np.argsort(-logits)
            probabilities = np.exp(logits[order] - logits.max())
            probabilities /= probabilities.sum()
            before = np.cumsum(probabilities) - probabilities
            logits[order[before >= rules.top_p]] = -np.inf
        logits -= logits.max()
        result[b, g, t] = (logits - np.log(np.exp(logits).sum()))[captions[b, g, t]]
    return result


@pytest.mark.parametrize("rules", RULES, ids=range(len(RULES)))
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_equals_the_rules_written_out(inputs, rules, chunk):
    ours = np.asarray(of_captions(*inputs, rules, banned=BANNED, chunk=chunk))
    expected = written_out(inputs, rules)
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(expected))
    assert np.isneginf(ours).any()  # the rules exclude some of these random tokens
    np.testing.assert_allclose(ours, expected, atol=2e-5)


def test_nothing_that_the_sampler_draws_is_excluded():
    """Captions drawn by the sampling rules from the same logits, with the penalty's memory of what was drawn."""
    rules = RULES[-1]
    rng = np.random.default_rng(1)
    hidden = jnp.asarray(rng.normal(size=(B, G, T, D)), jnp.float32)
    head = jnp.asarray(2 * rng.normal(size=(D, V)), jnp.float32)
    prompt, lengths = jnp.asarray(rng.integers(0, V, (B, P)), jnp.int32), jnp.array([P, 2], jnp.int32)
    seen = jnp.repeat(seen_tokens(prompt, lengths, V)[:, None], G, axis=1)
    keys = candidate_keys(0, 0, jnp.arange(B), G)
    draw = jax.jit(lambda logits, seen, t: sample(logits, keys, t, rules, seen=seen, banned=BANNED))
    drawn = []
    for t in range(T):
        drawn.append(draw(hidden[:, :, t] @ head, seen, t))
        seen = update_seen(seen, drawn[-1])
    captions = jnp.stack(drawn, axis=-1)
    logprobs = of_captions(hidden, head, captions, prompt, lengths, rules, banned=BANNED, chunk=T)
    assert bool(jnp.isfinite(logprobs).all())


def test_first_occurrence():
    captions = jnp.array([[[4, 2, 4, 0]]])
    first = first_occurrence(jnp.array([[1, 5]]), jnp.array([1]), captions, 6)
    np.testing.assert_array_equal(first, [[[3, -1, 1, 4, 0, 4]]])
