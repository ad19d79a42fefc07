"""Groups that outgrow short caches: they wait on the host, and nothing that they draw changes."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.rollout.drawing import BANNED, PLAIN, batches_of, made, rules
from tests.tiny_policy import END
from vcap_jax.rollout.placement import local_mesh
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.rollout.slots import Slots


@pytest.fixture
def waited(monkeypatch):
    """Indices of the groups that were taken out of short caches."""
    taken = []
    outgrown = Slots.outgrown

    def spied(self):
        found = outgrown(self)
        taken.extend(one.group.index for one in found)
        return found

    monkeypatch.setattr(Slots, "outgrown", spied)
    return taken


SHORT = {"group_size": 3, "max_completion_length": 40, "shrink": 2, "sampling": PLAIN}


@pytest.mark.long
@pytest.mark.parametrize("shrink", [1, 2])
def test_groups_that_outgrow_short_caches_wait_and_draw_the_same(policy, shrink, waited):
    """Nine groups, three at a time while they are short; each has the captions that it has alone."""
    graphdef, params, frozen = policy
    settings = SHORT | {"shrink": shrink, "decode_steps_per_call": 4, "groups_per_batch": 1}
    sampler = made(graphdef, rules(short_groups=3, short_length=12, **settings), end_ids=(END, 11, 12))
    alone = made(graphdef, rules(**settings), end_ids=(END, 11, 12))
    captions = []
    batches = list(batches_of(policy, (4, 3, 2)))
    groups = list(sampler.stream_batches(params, frozen, batches, seed=1, step=2, ended=captions.append))
    expected = {g.index: g for g in alone.stream_batches(params, frozen, batches, seed=1, step=2)}
    assert sorted(group.index for group in groups) == sorted(expected) == list(range(9))
    for group in groups:
        np.testing.assert_array_equal(group.tokens, expected[group.index].tokens)
        np.testing.assert_array_equal(group.lengths, expected[group.index].lengths)
        np.testing.assert_array_equal(group.truncated, expected[group.index].truncated)
    told = sorted((c.index, c.place, c.tokens.tolist()) for c in captions)
    assert told == sorted((c.index, c.place, c.tokens.tolist()) for g in groups for c in g.by_caption())
    # Groups with a caption of more than the 12 tokens and the rest of a call have waited, each once, and come last.
    assert sorted(waited) == sorted(group.index for group in groups if group.lengths.max() > 16)
    assert {group.index for group in groups[-len(waited) :]} == set(waited)
    assert 0 < len(waited) < 9


@pytest.mark.slow
def test_no_more_groups_wait_than_may(policy, waited):
    """Of a manifest of any length: those that wait go on before others begin, and draw the same."""
    graphdef, params, frozen = policy
    settings = SHORT | {"shrink": 1, "decode_steps_per_call": 4, "groups_per_batch": 1}
    sampler = made(graphdef, rules(short_groups=3, short_length=12, **settings), end_ids=(END, 11, 12))
    batches, read, beside = list(batches_of(policy, (3, 3, 3))), [], []
    told: set[int] = set()

    def reading():
        for batch in batches:
            beside.append(len(set(waited) - told))
            read.append(batch)
            yield batch

    def drawn(**more):
        found = {}
        read.clear(), waited.clear(), told.clear(), beside.clear()
        for group in sampler.stream_batches(params, frozen, reading(), seed=1, step=2, **more):
            told.add(group.index)
            found[group.index] = (group.tokens.tolist(), len(read))
        return found, [found[index][1] for index in waited]

    expected, last = drawn()
    assert set(last) == {3}, "all had been read"
    bounded, early = drawn(most_waiting=1)
    assert {index: tokens for index, (tokens, _) in bounded.items()} == {
        index: tokens for index, (tokens, _) in expected.items()
    }
    assert early[0] < 3
    assert max(beside) == 0, "nothing is read while a group waits"


def test_short_caches_are_of_the_size_that_is_asked_for(policy):
    graphdef, params, frozen = policy
    config = rules(short_groups=6, short_length=16, groups_per_batch=2, decode_steps_per_call=4, **SHORT)
    sampler = GroupSampler(
        graphdef, config, end_ids=[END], banned_ids=BANNED, mesh=local_mesh(1, jax.devices()[:1])
    )
    prompt = next(iter(batches_of(policy, (2,)))).prompt
    long, short = (
        sampler.abstract_calls(params, frozen, prompt.without_vision(), None, short=short).state
        for short in (False, True)
    )
    assert (long.tokens.shape, short.tokens.shape) == ((2, 3, 48), (6, 3, 20))
    assert sampler.short_buckets(1).widths == (8, 16)
    assert sampler.buckets(1).widths == (20, 40)


@pytest.mark.long
def test_every_shape_of_short_and_long_caches_is_warm(policy, compiled, waited):
    graphdef, params, frozen = policy
    settings = SHORT | {"decode_steps_per_call": 8, "groups_per_batch": 1}
    config = rules(short_groups=2, short_length=8, **settings)
    sampler = GroupSampler(graphdef, config, end_ids=[END, 11, 12], banned_ids=BANNED)
    batches = list(batches_of(policy, (4,)))
    assert sampler.warm(params, frozen, [12]) == 1 * 3 * 2 + 2 * 3 * 1
    compiled.clear()
    assert len(list(sampler.stream_batches(params, frozen, batches, seed=1, step=2))) == 4
    assert waited
    batches = list(batches_of(policy, (4,), seed=5))
    assert [name for name in compiled if "decode" in name] == []
    # Nor is anything else, once groups have waited.
    waited.clear(), compiled.clear()
    assert len(list(sampler.stream_batches(params, frozen, batches, seed=1, step=3))) == 4
    assert waited
    assert compiled == []


def test_short_groups_that_gain_nothing_are_refused():
    for settings, message in (
        ({"short_groups": 8}, "set both, or neither"),
        ({"short_length": 8}, "set both, or neither"),
        (
            {"short_groups": 4, "short_length": 8},
            r"short_groups is 4, no more than rollout\.groups_per_batch, 4",
        ),
        ({"short_groups": 8, "short_length": 4096}, "as many columns as rollout.max_completion_length"),
    ):
        with pytest.raises(ValueError, match=message):
            rules(**settings)


def test_shorter_captions_need_no_short_caches():
    config = rules(short_groups=8, short_length=64, max_completion_length=512)
    assert (config.limited_to(256).short_groups, config.limited_to(256).max_completion_length) == (8, 256)
    assert (config.limited_to(64).short_groups, config.limited_to(64).max_completion_length) == (0, 64)


def test_single_captions_have_a_number_of_groups_of_their_own():
    config = rules(short_groups=8, short_length=64, single_groups=24)
    assert config.share(2) == replace(config, groups_per_batch=2, short_groups=4)
    single = replace(config, group_size=1)
    assert single.share(2) == replace(single, groups_per_batch=12, short_groups=0, short_length=0)
    assert single.share(100).groups_per_batch == 1
    assert replace(single, single_groups=0).share(2).groups_per_batch == 2


def test_a_process_takes_its_share_of_short_groups():
    config = rules(short_groups=8, short_length=64)
    assert (config.share(2).groups_per_batch, config.share(2).short_groups) == (2, 4)
    # Of eight processes each has a slot in either case.
    assert (config.share(8).groups_per_batch, config.share(8).short_groups) == (1, 0)
