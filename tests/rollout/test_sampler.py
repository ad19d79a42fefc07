"""The group sampler: what it draws, when it stops, and that nothing depends on the batch."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.kernels.attention.new_tokens import PlainParts
from tests.rollout.drawing import BANNED, PLAIN, batches_of, encode, made, rules
from tests.tiny_policy import END, VOCABULARY, some_groups, tiny_model, tiny_prompts
from vcap_jax.kernels.attention import Dense, Paired
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout import decoding
from vcap_jax.rollout import sampler as sampler_module
from vcap_jax.rollout.sampler import GroupSampler, PromptGroups, RolloutConfig
from vcap_jax.rollout.sampling import SamplingConfig
from vcap_jax.rollout.schedule import ShapeBuckets
from vcap_jax.training.compile_counter import CompileCounter

SETTINGS = rules(group_size=3, max_completion_length=12, decode_steps_per_call=4, sampling=PLAIN)


def draw(policy, prompt, config, *, seed=0, step=3, ids=None):
    graphdef, params, frozen = policy
    features = encode(graphdef, params, prompt.vision)
    ids = range(len(prompt.lengths)) if ids is None else ids
    groups = list(
        made(graphdef, config).stream(
            params, frozen, prompt, features, seed=seed, step=step, group_ids=list(ids)
        )
    )
    return {group.index: group for group in groups}


def test_every_group_comes_once_and_ends_rightly(policy):
    groups = draw(policy, tiny_prompts(4), SETTINGS)
    assert sorted(groups) == [0, 1, 2, 3]
    for group in groups.values():
        for tokens, length, truncated in zip(group.tokens, group.lengths, group.truncated, strict=True):
            assert 1 <= length <= 12
            said = tokens[:length]
            assert not np.isin(said, BANNED).any()
            assert (said[:-1] != END).all()
            assert truncated == (said[-1] != END)
            if truncated:
                assert length == 12


def test_draws_do_not_depend_on_batch_or_chunk(policy):
    prompts = tiny_prompts(4)
    together = draw(policy, prompts, SETTINGS)
    other_chunk = draw(
        policy,
        prompts,
        rules(group_size=3, max_completion_length=12, decode_steps_per_call=12, sampling=PLAIN),
    )
    alone = draw(policy, some_groups(prompts, 2, 3), SETTINGS, ids=[2])
    np.testing.assert_array_equal(together[2].tokens, alone[0].tokens)
    for row in range(4):
        np.testing.assert_array_equal(together[row].tokens, other_chunk[row].tokens)
    elsewhere = draw(policy, prompts, SETTINGS, step=4)
    assert any((together[row].tokens != elsewhere[row].tokens).any() for row in range(4))


@pytest.mark.slow
@pytest.mark.parametrize("shrink", [1, 2])
def test_captions_are_the_same_by_a_kernel_for_new_tokens(policy, shrink):
    """Which goes by each caption's own length: those that have ended while others go on see nothing any more."""
    graphdef, params = nnx.split(tiny_model(kernel=Paired(sequences=Dense(), tokens=PlainParts())))
    settings = {"group_size": 3, "max_completion_length": 12, "decode_steps_per_call": 4, "sampling": PLAIN}
    ours = draw((graphdef, params, nnx.State({})), tiny_prompts(4), rules(shrink=shrink, **settings))
    expected = draw(policy, tiny_prompts(4), SETTINGS)
    lengths = np.stack([group.lengths for group in expected.values()])
    assert lengths.min() < 4 < lengths.max()
    for row, group in expected.items():
        np.testing.assert_array_equal(ours[row].tokens, group.tokens)
        np.testing.assert_array_equal(ours[row].lengths, group.lengths)


@pytest.mark.parametrize("every", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_captions_are_the_same_where_it_is_seldom_looked_whether_they_go_on(policy, monkeypatch, every):
    """Also those that end, or meet their limit, before the look."""
    settings = {"group_size": 3, "max_completion_length": 9, "decode_steps_per_call": 4, "sampling": PLAIN}
    graphdef, params, frozen = policy
    prompts = tiny_prompts(4)
    expected = draw(policy, prompts, rules(**settings))
    monkeypatch.setattr(decoding, "tokens_per_look", lambda chunk, platform: every)
    seldom = GroupSampler(graphdef, rules(**settings), end_ids=(END,), banned_ids=BANNED)
    features = encode(graphdef, params, prompts.vision)
    drawn = seldom.stream(params, frozen, prompts, features, seed=0, step=3, group_ids=list(range(4)))
    for group in drawn:
        np.testing.assert_array_equal(group.tokens, expected[group.index].tokens)
        np.testing.assert_array_equal(group.lengths, expected[group.index].lengths)
    lengths = np.stack([group.lengths for group in expected.values()])
    assert ((lengths % every > 0) & (lengths < 9)).any()


@pytest.mark.parametrize(
    ("chunk", "platform", "tokens"),
    [(64, "gpu", 8), (64, "cuda", 8), (12, "gpu", 4), (5, "gpu", 1), (64, "tpu", 1), (64, "cpu", 1)],
)
def test_a_gpu_looks_seldom_and_at_whole_parts_of_a_call(chunk, platform, tokens):
    assert decoding.tokens_per_look(chunk, platform) == tokens


def test_the_limit_is_in_tokens_and_not_in_columns(policy):
    """9 tokens have 10 columns: captions end at 9, and are those of a longer limit until there."""
    prompts = tiny_prompts(4)
    longer = draw(policy, prompts, SETTINGS)
    settings = {"group_size": 3, "max_completion_length": 9, "decode_steps_per_call": 4, "sampling": PLAIN}
    for shrink in (1, 2):
        cut = draw(policy, prompts, rules(shrink=shrink, **settings))
        for row, group in longer.items():
            assert cut[row].tokens.shape == (3, 9)
            np.testing.assert_array_equal(cut[row].lengths, np.minimum(group.lengths, 9))
            for ours, theirs, length in zip(cut[row].tokens, group.tokens, cut[row].lengths, strict=True):
                np.testing.assert_array_equal(ours[:length], theirs[:length])
    assert any(group.lengths.max() > 9 for group in longer.values())


def test_seeds_of_32_bits_and_more_draw_captions_of_their_own(policy):
    """A run's seed may be up to 2**32 - 1, and seeds of references and held-out captions lie above it."""
    seeds = (1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32 - 1 + 2_000_003)
    drawn = [draw(policy, tiny_prompts(2), SETTINGS, seed=seed)[0].tokens.tolist() for seed in seeds]
    assert all(one != other for i, one in enumerate(drawn) for other in drawn[:i])


def test_padding_groups_are_neither_decoded_nor_yielded(policy):
    prompts = tiny_prompts(4)
    lengths = np.where(np.arange(4) < 2, prompts.lengths, 0).astype(np.int32)
    padded = type(prompts)(prompts.tokens, prompts.positions, lengths, prompts.visual_index, prompts.vision)
    groups = draw(policy, padded, SETTINGS, ids=[0, 1])
    assert sorted(groups) == [0, 1]
    whole = draw(policy, prompts, SETTINGS)
    for row, group in groups.items():
        np.testing.assert_array_equal(group.tokens, whole[row].tokens)


def test_greedy_equals_the_plain_forward(policy):
    penalty = 1.4
    graphdef, params, frozen = policy
    prompts = tiny_prompts(2)
    sampling = SamplingConfig(temperature=0.0, repetition_penalty=penalty)
    config = rules(group_size=1, max_completion_length=8, decode_steps_per_call=3, sampling=sampling)
    groups = draw(policy, prompts, config)
    model = nnx.merge(graphdef, params, frozen)
    features = encode(graphdef, params, prompts.vision)
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


RULES = SamplingConfig(temperature=0.7, top_p=0.9, top_k=12, repetition_penalty=1.3)


@pytest.mark.parametrize(
    ("devices", "mesh", "shapes"),
    [
        (1, MeshConfig(), {"groups_per_batch": 4}),
        pytest.param(1, MeshConfig(), {"groups_per_batch": 2, "shrink": 2}, marks=pytest.mark.long),
        pytest.param(
            1,
            MeshConfig(),
            {"groups_per_batch": 1, "short_groups": 2, "short_length": 4},
            marks=pytest.mark.slow,
        ),
        pytest.param(2, MeshConfig(), {"groups_per_batch": 4}, marks=pytest.mark.long),
        pytest.param(2, MeshConfig(fsdp=1, tensor=2), {"groups_per_batch": 4}, marks=pytest.mark.long),
    ],
    ids=["one shape", "shrinking", "short caches", "two devices", "two devices for each product"],
)
def test_log_probabilities_are_those_of_the_whole_forward(policy, devices, mesh, shapes):
    """Over the whole vocabulary, whatever the rules leave of it; and nothing else is drawn for their sake."""
    graphdef, whole, frozen = policy
    prompt = tiny_prompts(4)
    features = encode(graphdef, whole, prompt.vision)
    config = rules(group_size=3, max_completion_length=12, decode_steps_per_call=4, sampling=RULES, **shapes)
    params = Placement.build(mesh, jax.devices()[:devices]).state(whole) if devices > 1 else whole
    asked, plain = (
        GroupSampler(graphdef, config, end_ids=(END, 11, 12), banned_ids=BANNED, logprobs=logprobs)
        for logprobs in (True, False)
    )
    drawn, expected = (
        {
            group.index: group
            for group in sampler.stream(own, frozen, prompt, features, seed=0, step=3, group_ids=range(4))
        }
        for sampler, own in ((asked, params), (plain, whole))
    )
    captions = np.stack([drawn[row].tokens for row in range(4)])
    np.testing.assert_array_equal(captions, np.stack([expected[row].tokens for row in range(4)]))
    assert all(group.logprobs is None for group in expected.values())
    model = nnx.merge(graphdef, whole, frozen)
    logits = jax.jit(lambda x: model.logits(model.caption_hidden(prompt, features, x)))(captions)
    of_tokens = jax.nn.log_softmax(logits / RULES.temperature)
    theirs = np.take_along_axis(np.asarray(of_tokens), captions[..., None], axis=-1)[..., 0]
    ended = 0
    for row, group in drawn.items():
        beyond = np.arange(12) >= group.lengths[:, None]
        np.testing.assert_array_equal(np.isnan(group.logprobs), beyond)
        np.testing.assert_allclose(group.logprobs[~beyond], theirs[row][~beyond], atol=1e-5)
        ended += beyond.sum()
    assert 0 < ended < captions.size / 2


def test_greedy_captions_have_no_log_probabilities(policy):
    graphdef, params, frozen = policy
    greedy = rules(max_completion_length=8, sampling=SamplingConfig(temperature=0.0))
    sampler = GroupSampler(graphdef, greedy, end_ids=[END], banned_ids=BANNED, logprobs=True)
    with pytest.raises(ValueError, match=r"temperature is 0\.0; log-probabilities need a positive one"):
        list(sampler.stream_batches(params, frozen, batches_of(policy, (1,)), seed=0, step=0))


def prompts_of(policy, tokens):
    """Batches of two groups, each padded to its own number of tokens; their pictures have as many patches."""
    graphdef, params, _ = policy
    batches = []
    for number, padded in enumerate(tokens):
        prompt = tiny_prompts(2, seed=number, tokens=padded)
        features = encode(graphdef, params, prompt.vision)
        batches.append(PromptGroups(prompt, features, range(2 * number, 2 * number + 2)))
    return batches


def test_groups_that_wait_take_the_slots_of_those_that_are_complete(policy):
    """Nine groups of three batches through two slots: each has the captions that it has alone."""
    graphdef, params, frozen = policy
    settings = {"group_size": 3, "max_completion_length": 24, "sampling": PLAIN}
    narrow = rules(groups_per_batch=2, decode_steps_per_call=4, prefill_chunk=40, shrink=4, **settings)
    sampler = made(graphdef, narrow, end_ids=(END, 11, 12))
    read = []

    def recorded():
        for batch in batches_of(policy, (4, 3, 2)):
            read.append(len(batch.ids))
            yield batch

    groups, read_at_first, captions = [], 0, []
    for group in sampler.stream_batches(params, frozen, recorded(), seed=1, step=2, ended=captions.append):
        read_at_first = read_at_first or len(read)
        groups.append(group)
        # Its captions, each once, have been told before; of other groups some that had ended before theirs.
        told = {c.place: c.tokens.tolist() for c in captions if c.index == group.index}
        assert told == {c.place: c.tokens.tolist() for c in group.by_caption()}
    assert len(captions) == 3 * len(groups)
    # Within a group captions end one by one, in another order than their places'.
    assert [(c.index, c.place) for c in captions] != sorted((c.index, c.place) for c in captions)
    assert sorted(group.index for group in groups) == list(range(9))
    assert read_at_first == 1
    plain = rules(groups_per_batch=1, decode_steps_per_call=24, **settings)
    alone = made(graphdef, plain, end_ids=(END, 11, 12))
    expected = {
        g.index: g
        for g in alone.stream_batches(params, frozen, batches_of(policy, (4, 3, 2)), seed=1, step=2)
    }
    for group in groups:
        np.testing.assert_array_equal(group.tokens, expected[group.index].tokens)
        np.testing.assert_array_equal(group.lengths, expected[group.index].lengths)
        np.testing.assert_array_equal(group.truncated, expected[group.index].truncated)
    lengths = np.concatenate([group.lengths for group in groups])
    assert lengths.min() < 8
    assert lengths.max() == 24


@pytest.fixture(scope="module")
def warm(policy):
    """A sampler whose calls shrink, with all its programs compiled."""
    graphdef, params, frozen = policy
    config = rules(
        group_size=2,
        max_completion_length=8,
        groups_per_batch=2,
        decode_steps_per_call=2,
        shrink=2,
        sampling=PLAIN,
    )
    sampler = made(graphdef, config, end_ids=(END, *range(11, 16)))
    assert sampler.warm(params, frozen, [12]) == 2 * 2 * 2
    list(sampler.stream_batches(params, frozen, batches_of(policy, (3,)), seed=0, step=0))
    return sampler


@pytest.mark.long
def test_what_has_ended_is_not_decoded(policy, warm, monkeypatch):
    """The shapes of the calls follow the captions: they shrink, and grow again with a new group."""
    _, params, frozen = policy
    shapes = []
    plan = ShapeBuckets.plan

    def spied(self, live, steps):
        made = plan(self, live, steps)
        shapes.append((made.shape, int(live.any(-1).sum()), int(live.sum(-1).max())))
        return made

    monkeypatch.setattr(ShapeBuckets, "plan", spied)
    for step in range(4):
        list(warm.stream_batches(params, frozen, batches_of(policy, (7,)), seed=0, step=step))
    assert {shape.candidates for shape, _, _ in shapes} == {1, 2}
    assert {shape.slots for shape, _, _ in shapes} == {1, 2}
    assert {shape.width for shape, _, _ in shapes} == {4, 8}
    assert all(shape.slots < 2 * slots or shape.slots == 1 for shape, slots, _ in shapes)
    assert all(shape.candidates < 2 * most or shape.candidates == 1 for shape, _, most in shapes)


@pytest.mark.slow
def test_nothing_is_compiled_once_a_bucket_is_warm(policy, warm):
    _, params, frozen = policy
    steps = [list(batches_of(policy, (3, 3), seed=5 * step)) for step in range(3)]
    with CompileCounter() as compiles:
        for step, batches in enumerate(steps):
            assert len(list(warm.stream_batches(params, frozen, batches, seed=0, step=step))) == 6
    assert compiles.count == 0


@pytest.mark.slow
def test_no_decode_call_is_compiled_once_a_bucket_is_warm_on_two_devices(policy, compiled):
    """Whatever shapes the captions come to; and after the first step nothing at all is."""
    graphdef, whole, _ = policy
    params, frozen = Placement.build(MeshConfig(), jax.devices()[:2]).state(whole), nnx.State({})
    config = RolloutConfig(
        group_size=2, max_completion_length=8, groups_per_batch=4, decode_steps_per_call=4, shrink=2
    )
    sampler = GroupSampler(graphdef, config, end_ids=[END, *range(11, 16)], banned_ids=[5, 6, 7, 8])
    steps = [list(batches_of(policy, (3, 3), seed=5 * step)) for step in range(3)]
    compiled.clear()
    # Two sizes of slots and of captions; a cache of two chunks has one width.
    assert sampler.warm(params, frozen, [12]) == 4
    decode = compiled[0]
    assert "_decode" in decode
    assert compiled == [decode] * 4
    for step, groups in enumerate(steps):
        compiled.clear()
        assert len(list(sampler.stream_batches(params, frozen, groups, seed=0, step=step))) == 6
        assert decode not in compiled
        assert bool(compiled) == (step == 0)


def test_one_shape_is_left_to_the_first_call(policy, compiled):
    graphdef, params, _ = policy
    sampler = GroupSampler(graphdef, RolloutConfig(shrink=1), end_ids=[END], banned_ids=[])
    params = jax.tree.map(jnp.asarray, params)
    compiled.clear()
    assert sampler.warm(params, nnx.State({}), [12, 24]) == 0
    assert compiled == []


@pytest.mark.slow
def test_caches_of_a_width_are_gone_before_those_of_the_next_are_made(policy, monkeypatch):
    graphdef, params, frozen = policy
    made_before = []

    class Watched(sampler_module.Slots):
        def __init__(self, *args):
            assert all(earlier() is None for earlier in made_before)
            super().__init__(*args)
            made_before.append(weakref.ref(self))

    monkeypatch.setattr(sampler_module, "Slots", Watched)
    batches = prompts_of(policy, (12, 32, 12))
    config = rules(group_size=2, max_completion_length=4, decode_steps_per_call=2, sampling=PLAIN)
    found = list(made(graphdef, config).stream_batches(params, frozen, batches, seed=0, step=0))
    assert sorted(group.index for group in found) == list(range(6))
    assert len(made_before) == 3


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 6])
def test_shorter_prompts_decode_beside_longer_ones_and_draw_what_they_draw_alone(policy, monkeypatch, slots):
    """Each is computed at its own size, and put into a slot as wide as the first, filled all at once or in turn."""
    graphdef, params, frozen = policy
    widths = []

    class Watched(sampler_module.Slots):
        def __init__(self, *args):
            super().__init__(*args)
            widths.append(self.state.prompt.keys[0].shape[-1])

    settings = {"group_size": 2, "max_completion_length": 8, "decode_steps_per_call": 4, "sampling": PLAIN}
    batches = prompts_of(policy, (16, 12, 8))
    alone = {}
    for batch in batches:
        of_one = made(graphdef, rules(groups_per_batch=1, **settings))
        alone |= {g.index: g for g in of_one.stream_batches(params, frozen, [batch], seed=0, step=0)}
    monkeypatch.setattr(sampler_module, "Slots", Watched)
    sampler = made(graphdef, rules(groups_per_batch=slots, **settings))
    found = list(sampler.stream_batches(params, frozen, batches, seed=0, step=0))
    assert sorted(group.index for group in found) == list(range(6))
    assert widths == [16]
    for group in found:
        np.testing.assert_array_equal(group.tokens, alone[group.index].tokens)
        np.testing.assert_array_equal(group.lengths, alone[group.index].lengths)


@pytest.mark.slow
def test_frequencies_follow_the_model(policy):
    """First tokens of many candidates against the model's own distribution."""
    graphdef, params, frozen = policy
    prompts = some_groups(tiny_prompts(1), 0, 1)
    config = rules(group_size=4000, max_completion_length=1, decode_steps_per_call=1, sampling=PLAIN)
    first = draw(policy, prompts, config)[0].tokens[:, 0]
    model = nnx.merge(graphdef, params, frozen)
    features = encode(graphdef, params, prompts.vision)
    logits = jax.jit(lambda features: model.logits(model.hidden(prompts, features)))(features)
    logits = np.array(logits[0, prompts.lengths[0] - 1])
    logits[list(BANNED)] = -np.inf
    expected = np.asarray(jax.nn.softmax(logits))
    observed = np.bincount(first, minlength=VOCABULARY) / len(first)
    # Five standard errors of a share.
    assert (np.abs(observed - expected) <= 5 * np.sqrt(expected * (1 - expected) / len(first)) + 1e-9).all()


def test_no_end_token_is_refused(policy):
    with pytest.raises(ValueError, match="end-of-caption"):
        GroupSampler(policy[0], RolloutConfig(), end_ids=[], banned_ids=[])
