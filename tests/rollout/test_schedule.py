"""The scheduler: the smallest known shape that holds what is unfinished, and which rows go into it."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.rollout.schedule import Shape, ShapeBuckets, has_room, sizes_down_to


@pytest.mark.parametrize(
    ("largest", "smallest", "factor", "sizes"),
    [
        (8, 1, 2, (1, 2, 4, 8)),
        (6, 1, 2, (1, 2, 3, 6)),
        (4096, 128, 2, (128, 256, 512, 1024, 2048, 4096)),
        (192, 128, 2, (192,)),
        (8, 1, 4, (1, 2, 8)),
        (8, 1, 1, (8,)),
        (1, 1, 2, (1,)),
    ],
)
def test_sizes(largest: int, smallest: int, factor: int, sizes: tuple[int, ...]) -> None:
    assert sizes_down_to(largest, smallest, factor) == sizes


def buckets(**changed: int) -> ShapeBuckets:
    settings = {"slots": 4, "candidates": 8, "width": 512, "chunk": 32, "factor": 2, "rows": 1} | changed
    return ShapeBuckets.build(**settings)


def test_every_turn_holds_what_is_unfinished_in_a_known_shape() -> None:
    rng = np.random.default_rng(0)
    steps_of = buckets()
    known = set(steps_of.shapes())
    seen = set()
    for _ in range(300):
        live = rng.random((2, 4, 8)) < rng.choice([0.05, 0.3, 0.9])
        live &= rng.random((2, 4, 1)) < 0.7
        live[0, 0, 0] = True
        steps = rng.integers(0, rng.choice([20, 500]), (2, 4))
        plan = steps_of.plan(live, steps)
        assert plan.shape in known
        seen.add(plan.shape)
        for replica in range(2):
            assert len(set(plan.slots[replica])) == plan.shape.slots
            taken = np.zeros((4, 8), bool)
            for slot, candidates in zip(plan.slots[replica], plan.candidates[replica], strict=True):
                assert len(set(candidates)) == plan.shape.candidates
                taken[slot, candidates] = True
            assert taken[live[replica]].all()
        assert steps[live.any(-1)].max() <= plan.shape.width
        # No smaller size of any axis would do.
        smaller = [s for s in steps_of.slots if s < plan.shape.slots]
        assert not smaller or live.any(-1).sum(-1).max() > smaller[-1]
    assert len(seen) > 10


def test_everything_in_order_when_all_is_live() -> None:
    plan = buckets().plan(np.ones((1, 4, 8), bool), np.full((1, 4), 512))
    assert plan.shape == Shape(4, 8, 512)
    np.testing.assert_array_equal(plan.slots, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(plan.candidates[0], np.tile(np.arange(8), (4, 1)))


def test_slots_without_live_captions_make_no_call_wider_and_outgrow_nothing() -> None:
    """Those of a group that is done keep its steps until the next one comes."""
    live, steps = np.zeros((1, 4, 8), bool), np.array([[600, 100, 512, 513]])
    live[0, 1, 0] = True
    assert buckets().plan(live, steps).shape == Shape(1, 1, 128)
    live[0, 2:, 0] = True
    # Of 512 tokens there is room for all.
    assert buckets().outgrown(live, steps).tolist() == [[False, False, False, True]]


@pytest.mark.parametrize("width", [6300, 4096, 5000])
def test_widths_are_aligned_and_hold_the_longest_caption(width: int) -> None:
    """(6,300 and 1,575 columns: the captions' values were copied in every layer, for every token.)"""
    widths = buckets(width=width, chunk=128, factor=4).widths
    assert all(columns % 64 == 0 for columns in widths)
    assert widths[-1] - 64 < width <= widths[-1]
    assert len(widths) == 3


def test_a_slot_takes_prompts_of_half_its_width_and_more() -> None:
    assert [prompt for prompt in (3, 4, 5, 8, 9) if has_room(8, prompt)] == [4, 5, 8]


def test_rows_bound_the_shapes_and_factor_one_leaves_one() -> None:
    assert list(buckets(factor=1).shapes()) == [Shape(4, 8, 512)]
    bounded = buckets(rows=16)
    assert bounded.slots == (2, 4)
    assert min(s.slots * s.candidates for s in bounded.shapes()) >= 16
