"""The group sampler: what it draws, when it stops, and that nothing depends on the batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.tiny_policy import END, VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.compile_counter import CompileCounter
from vcap_jax.grpo.step import take_groups
from vcap_jax.rollout.sampler import GroupSampler, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig

PLAIN = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
BANNED = (5, 6, 7, 8)


@pytest.fixture(scope="module")
def policy():
    graphdef, params = nnx.split(tiny_model())
    return graphdef, params, nnx.State({})


def draw(policy, prompt, config, *, seed=0, step=3, ids=None, sampler=None):
    graphdef, params, frozen = policy
    sampler = sampler or GroupSampler(graphdef, config, end_ids=[END], banned_ids=BANNED)
    features = nnx.merge(graphdef, params, frozen).encode_vision(prompt.vision)
    ids = range(len(prompt.lengths)) if ids is None else ids
    groups = list(sampler.stream(params, frozen, prompt, features, seed=seed, step=step, group_ids=list(ids)))
    return {group.index: group for group in groups}


def test_every_group_comes_once_and_ends_rightly(policy):
    config = RolloutConfig(group_size=4, max_completion_length=16, chunk=5, sampling=PLAIN)
    groups = draw(policy, tiny_prompts(3), config)
    assert sorted(groups) == [0, 1, 2]
    for group in groups.values():
        for tokens, length, truncated in zip(group.tokens, group.lengths, group.truncated, strict=True):
            assert 1 <= length <= 16
            said = tokens[:length]
            assert not np.isin(said, BANNED).any()
            assert (said[:-1] != END).all()
            assert truncated == (said[-1] != END)
            if truncated:
                assert length == 16


def test_draws_do_not_depend_on_batch_or_chunk(policy):
    config = RolloutConfig(group_size=3, max_completion_length=12, chunk=4, sampling=PLAIN)
    prompts = tiny_prompts(4)
    together = draw(policy, prompts, config)
    other_chunk = draw(
        policy, prompts, RolloutConfig(group_size=3, max_completion_length=12, chunk=12, sampling=PLAIN)
    )
    alone = draw(policy, take_groups(prompts, 2, 3), config, ids=[2])
    np.testing.assert_array_equal(together[2].tokens, alone[0].tokens)
    for row in range(4):
        np.testing.assert_array_equal(together[row].tokens, other_chunk[row].tokens)
    elsewhere = draw(policy, prompts, config, step=4)
    assert any((together[row].tokens != elsewhere[row].tokens).any() for row in range(4))


def test_padding_groups_are_neither_decoded_nor_yielded(policy):
    prompts = tiny_prompts(2)
    lengths = np.array([prompts.lengths[0], 0], np.int32)
    padded = type(prompts)(prompts.tokens, prompts.positions, lengths, prompts.visual_index, prompts.vision)
    config = RolloutConfig(group_size=2, max_completion_length=8, chunk=8, sampling=PLAIN)
    groups = draw(policy, padded, config, ids=[0])
    assert list(groups) == [0]
    np.testing.assert_array_equal(groups[0].tokens, draw(policy, prompts, config)[0].tokens)


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_equals_the_plain_forward(policy, penalty):
    graphdef, params, frozen = policy
    prompts = tiny_prompts(2)
    sampling = SamplingConfig(temperature=0.0, repetition_penalty=penalty)
    config = RolloutConfig(group_size=1, max_completion_length=8, chunk=3, sampling=sampling)
    groups = draw(policy, prompts, config)
    model = nnx.merge(graphdef, params, frozen)
    features = model.encode_vision(prompts.vision)
    forward = jax.jit(lambda captions: model.logits(model.caption_hidden(prompts, features, captions)))
    for row, group in groups.items():
        said: list[int] = []
        seen = set(prompts.tokens[row, : prompts.lengths[row]].tolist())
        for _ in range(int(group.lengths[0])):
            captions = np.zeros((2, 1, 8), np.int32)
            captions[row, 0, : len(said)] = said
            logits = np.array(forward(jnp.asarray(captions))[row, 0, len(said)])
            for token in seen:
                logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
            logits[list(BANNED)] = -np.inf
            said.append(int(logits.argmax()))
            seen.add(said[-1])
        np.testing.assert_array_equal(group.tokens[0, : group.lengths[0]], said)


def test_nothing_is_compiled_in_steady_state(policy):
    graphdef, params, frozen = policy
    config = RolloutConfig(group_size=2, max_completion_length=8, chunk=4, sampling=PLAIN)
    sampler = GroupSampler(graphdef, config, end_ids=[END], banned_ids=BANNED)
    draw(policy, tiny_prompts(2), config, sampler=sampler)
    features = jax.jit(lambda p, v: nnx.merge(graphdef, p, frozen).encode_vision(v))
    features(params, tiny_prompts(2).vision)
    with CompileCounter() as compiles:
        for step in range(3):
            prompt = tiny_prompts(2, seed=step)
            list(
                sampler.stream(
                    params,
                    frozen,
                    prompt,
                    features(params, prompt.vision),
                    seed=0,
                    step=step,
                    group_ids=[0, 1],
                )
            )
    assert compiles.count == 0


def test_frequencies_follow_the_model(policy):
    """First tokens of many candidates against the model's own distribution."""
    graphdef, params, frozen = policy
    prompts = take_groups(tiny_prompts(1), 0, 1)
    config = RolloutConfig(group_size=4000, max_completion_length=1, chunk=1, sampling=PLAIN)
    first = draw(policy, prompts, config)[0].tokens[:, 0]
    model = nnx.merge(graphdef, params, frozen)
    hidden, _ = model.prefill(prompts, model.encode_vision(prompts.vision))
    logits = np.array(model.logits(hidden))[0]
    logits[list(BANNED)] = -np.inf
    expected = np.asarray(jax.nn.softmax(logits))
    observed = np.bincount(first, minlength=VOCABULARY) / len(first)
    # Five standard errors of a share.
    assert (np.abs(observed - expected) <= 5 * np.sqrt(expected * (1 - expected) / len(first)) + 1e-9).all()


def test_no_end_token_is_refused(policy):
    with pytest.raises(ValueError, match="end-of-caption"):
        GroupSampler(policy[0], RolloutConfig(), end_ids=[], banned_ids=[])
