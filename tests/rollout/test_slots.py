"""Prompts that go on in several ways: each way draws what its prompt by itself draws."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from tests.rollout.drawing import BANNED, encode, rules
from tests.tiny_policy import END, tiny_prompts
from vcap_jax.models.qwen3_vl.inputs import PromptBatch
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.rollout.slots import Incoming, PromptGroups, SampledGroup, Suffixes

PENALISED = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.3)
GROUPS, WAYS, EACH = 3, 2, 2
ENDS = (END, *range(11, 16))
ANSWERS = {"max_completion_length": 9, "decode_steps_per_call": 4, "sampling": PENALISED}


def suffixes() -> list[list[list[int]]]:
    """Of each group one of 2 tokens and a longer one; an end token among them ends nothing."""
    rng = np.random.default_rng(5)
    return [
        [rng.integers(20, 40, 2).tolist(), [*rng.integers(20, 40, 2 + group).tolist(), END, 21]]
        for group in range(GROUPS)
    ]


def continued(prompt: PromptBatch, row: int, suffix: list[int]) -> PromptBatch:
    """One prompt of the batch with a suffix behind it, by itself."""
    own = jax.tree.map(lambda x: np.array(x[row : row + 1]), prompt)
    length, tokens = int(own.lengths[0]), np.zeros((1, 24), np.int32)
    tokens[0, :length], tokens[0, length : length + len(suffix)] = own.tokens[0, :length], suffix
    visual = np.full((1, 24), -1, np.int32)
    visual[0, :length] = own.visual_index[0, :length]
    positions = np.broadcast_to(np.arange(24, dtype=np.int32), (1, 3, 24)).copy()
    return PromptBatch(tokens, positions, np.array([length + len(suffix)], np.int32), visual, own.vision)


@pytest.fixture(scope="module")
def alone(policy) -> dict[tuple[int, int], SampledGroup]:
    """What the prompt of each group and way draws by itself."""
    graphdef, params, frozen = policy
    prompt, found = tiny_prompts(GROUPS), {}
    sampler = GroupSampler(
        graphdef,
        rules(group_size=EACH, groups_per_batch=1, **ANSWERS),
        end_ids=ENDS,
        banned_ids=BANNED,
    )
    for row, ways in enumerate(suffixes()):
        for way, suffix in enumerate(ways):
            whole = continued(prompt, row, suffix)
            features = encode(graphdef, params, whole.vision)
            (found[row, way],) = sampler.stream(
                params, frozen, whole, features, seed=4, step=0, group_ids=[10 * row + way]
            )
    lengths = [int(n) for group in found.values() for n in group.lengths]
    assert min(lengths) < 5
    assert any(group.truncated.any() for group in found.values())
    return found


def given(prompt: PromptBatch, ways: list[list[list[int]]]) -> PromptGroups:
    tokens = np.full((GROUPS, WAYS, 6), -1, np.int32)
    for row, of_row in enumerate(ways):
        for way, suffix in enumerate(of_row):
            tokens[row, way, : len(suffix)] = suffix
    ids = 10 * np.arange(GROUPS)[:, None] + np.arange(WAYS)
    return PromptGroups(
        prompt.without_vision(), None, range(GROUPS), suffixes=Suffixes(tokens, ids.astype(np.int32))
    )


@pytest.mark.parametrize(
    "shapes",
    [
        {"groups_per_batch": 4},
        pytest.param({"groups_per_batch": 2, "shrink": 2}, marks=pytest.mark.long),
        pytest.param({"groups_per_batch": 1, "short_groups": 2, "short_length": 4}, marks=pytest.mark.slow),
    ],
    ids=["one shape", "shrinking", "short caches"],
)
def test_each_way_draws_what_its_prompt_draws_by_itself(policy, alone, shapes) -> None:
    """Suffixes of several lengths, with an end token, under a penalty for what was said."""
    graphdef, params, frozen = policy
    prompt = tiny_prompts(GROUPS)
    sampler = GroupSampler(
        graphdef,
        rules(group_size=WAYS * EACH, **ANSWERS, **shapes),
        end_ids=ENDS,
        banned_ids=BANNED,
        suffix_tokens=6,
    )
    batch = replace(given(prompt, suffixes()), features=encode(graphdef, params, prompt.vision))
    told = []
    groups = list(sampler.stream_batches(params, frozen, [batch], seed=4, step=0, ended=told.append))
    assert sorted(group.index for group in groups) == list(range(GROUPS))
    for group in groups:
        assert group.tokens.shape == (WAYS * EACH, 9)
        for way in range(WAYS):
            own, expected = slice(way * EACH, (way + 1) * EACH), alone[group.index, way]
            np.testing.assert_array_equal(group.tokens[own], expected.tokens)
            np.testing.assert_array_equal(group.lengths[own], expected.lengths)
            np.testing.assert_array_equal(group.truncated[own], expected.truncated)
    heard = {(caption.index, caption.place): caption.tokens.tolist() for caption in told}
    assert heard == {(c.index, c.place): c.tokens.tolist() for group in groups for c in group.by_caption()}


@pytest.mark.long
@pytest.mark.parametrize("mesh", [MeshConfig(), MeshConfig(fsdp=1, tensor=2)], ids=["groups", "products"])
def test_each_way_draws_the_same_on_two_devices(policy, alone, mesh) -> None:
    """Which share out the groups, or every product."""
    graphdef, whole, _ = policy
    params, frozen = Placement.build(mesh, jax.devices()[:2]).state(whole), nnx.State({})
    prompt = tiny_prompts(GROUPS)
    sampler = GroupSampler(
        graphdef,
        rules(group_size=WAYS * EACH, groups_per_batch=4, **ANSWERS),
        end_ids=ENDS,
        banned_ids=BANNED,
        suffix_tokens=6,
    )
    batch = replace(given(prompt, suffixes()), features=encode(graphdef, whole, prompt.vision))
    for group in sampler.stream_batches(params, frozen, [batch], seed=4, step=0):
        for way in range(WAYS):
            own = slice(way * EACH, (way + 1) * EACH)
            np.testing.assert_array_equal(group.tokens[own], alone[group.index, way].tokens)


def test_groups_that_are_computed_together_are_of_one_batch() -> None:
    batches = [PromptGroups(tiny_prompts(2).without_vision(), None, ids) for ids in ((0, 1), (2, 3))]
    waiting, width = Incoming(batches), batches[0].tokens
    taken = [[(group.id, group.row) for group in waiting.take(most, width)] for most in (1, 3, 3, 3)]
    assert taken == [[(0, 0)], [(1, 1)], [(2, 0), (3, 1)], []]
