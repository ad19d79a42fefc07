"""Samplers of the tiny policy, and prompts for them."""

from __future__ import annotations

import functools

import jax
from flax import nnx

from tests.tiny_policy import END, tiny_prompts
from vcap_jax.rollout.sampler import GroupSampler, PromptGroups, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig

PLAIN = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
BANNED = (5, 6, 7, 8)


def rules(**changed):
    """One shape of decode calls, if nothing else is said: every shape is compiled."""
    return RolloutConfig(**{"shrink": 1, "groups_per_batch": 4} | changed)


@functools.cache
def made(graphdef, config, end_ids=(END,)):
    """One sampler for all tests with the same settings, so that its programs are compiled once."""
    return GroupSampler(graphdef, config, end_ids=end_ids, banned_ids=BANNED)


@functools.partial(jax.jit, static_argnums=0)
def encode(graphdef, params, vision):
    return nnx.merge(graphdef, params).encode_vision(vision)


def batches_of(policy, sizes, *, seed=0):
    """Batches of prompts with their features; ids count on through them."""
    graphdef, params, _ = policy
    first = 0
    for number, size in enumerate(sizes):
        prompt = tiny_prompts(size, seed=seed + number)
        yield PromptGroups(prompt, encode(graphdef, params, prompt.vision), range(first, first + size))
        first += size
