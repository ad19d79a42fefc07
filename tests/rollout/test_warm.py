"""Compilation before the first step: all shapes that captions can come to, and then none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.tiny_policy import END, tiny_model, tiny_prompts
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout.sampler import GroupSampler, PromptGroups, RolloutConfig

PROMPT_TOKENS = 12


def batches(encode, step):
    for first in (0, 3):
        prompt = tiny_prompts(3, seed=5 * step + first, tokens=PROMPT_TOKENS)
        yield PromptGroups(prompt, encode(prompt.vision), range(first, first + 3))


@pytest.fixture
def compiled():
    """Names of the programs that are compiled, by whichever thread."""
    names = []

    def listen(event, _, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(more["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_no_decode_call_is_compiled_once_a_bucket_is_warm(compiled):
    """Whatever shapes the captions come to; and after the first step nothing at all is."""
    model = tiny_model()
    graphdef, params = nnx.split(model)
    params, frozen = Placement.build(MeshConfig(), jax.devices()[:2]).state(params), nnx.State({})
    config = RolloutConfig(
        group_size=2, max_completion_length=8, groups_per_batch=4, decode_steps_per_call=4, shrink=2
    )
    sampler = GroupSampler(graphdef, config, end_ids=[END, *range(11, 16)], banned_ids=[5, 6, 7, 8])
    encode = jax.jit(lambda vision: model.encode_vision(vision))
    steps = [list(batches(encode, step)) for step in range(3)]
    compiled.clear()
    # Two sizes of slots and of captions; a cache of two chunks has one width.
    assert sampler.warm(params, frozen, [PROMPT_TOKENS]) == 4
    decode = compiled[0]
    assert "_decode" in decode
    assert compiled == [decode] * 4
    for step, groups in enumerate(steps):
        compiled.clear()
        assert len(list(sampler.stream_batches(params, frozen, groups, seed=0, step=step))) == 6
        assert decode not in compiled
        assert bool(compiled) == (step == 0)


def test_one_shape_is_left_to_the_first_call(compiled):
    graphdef, params = nnx.split(tiny_model())
    sampler = GroupSampler(graphdef, RolloutConfig(shrink=1), end_ids=[END], banned_ids=[])
    params = jax.tree.map(jnp.asarray, params)
    compiled.clear()
    assert sampler.warm(params, nnx.State({}), [12, 24]) == 0
    assert compiled == []
