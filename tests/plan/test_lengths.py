"""Decoding with captions of several lengths, as the scheduler does it and as it is charged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vcap_jax.plan.lengths import Decoding, columns_read, decode_calls, spread_lengths
from vcap_jax.rollout.schedule import Shape, ShapeBuckets

ONE = ShapeBuckets.build(slots=2, candidates=2, width=64, chunk=8, factor=1, rows=1)
SEVERAL = ShapeBuckets.build(slots=2, candidates=2, width=64, chunk=8, factor=2, rows=1)


def decoding(buckets: ShapeBuckets, **changed: float) -> Decoding:
    sizes = {"replicas": 1, "groups": 4, "captions": 2, "chunk": 8}
    read = {"parameters": 1000, "prompt": 10, "column": 0.5}
    return Decoding(buckets=buckets, **(sizes | read | changed))


@pytest.mark.parametrize(("mean", "longest"), [(1500, 2048), (2000, 4096), (2000, 6300), (64, 64), (100, 64)])
def test_lengths_have_the_mean_and_the_longest(mean: int, longest: int) -> None:
    lengths = spread_lengths(mean, longest, 32, 8)
    assert lengths.shape == (32, 8)
    assert lengths.mean() == pytest.approx(min(mean, longest), rel=0.02)
    assert lengths.max() == longest
    assert lengths.min() >= 1
    np.testing.assert_array_equal(lengths, spread_lengths(mean, longest, 32, 8))


def test_a_free_slot_is_filled_and_the_last_captions_are_a_tail() -> None:
    """Groups of 16, 40, 8 and 8 tokens through two slots: the third and fourth go where the first was."""
    lengths = np.array([[16, 9], [40, 40], [8, 3], [8, 8]])
    calls = [call[:2] for call in decode_calls(ONE, 1, 8, lengths)]
    assert calls == [(Shape(2, 2, 64), 8)] * 5
    fewer = [call.shape.slots for call in decode_calls(SEVERAL, 1, 8, lengths)]
    assert fewer == [2, 2, 2, 2, 1]
    # On two replicas a slot each would do; the calls are as many as the longest caption has.
    apart = list(decode_calls(ONE, 2, 8, lengths))
    assert len(apart) == 5


def test_a_call_ends_with_its_longest_caption() -> None:
    (call,) = decode_calls(ONE, 1, 8, np.array([[3, 1], [2, 2]]))
    assert call[:2] == (Shape(2, 2, 64), 3)


def test_captions_of_the_longest_length_cost_what_the_largest_shape_costs() -> None:
    longest = decoding(ONE, groups=2)
    full = longest.read(Shape(2, 2, 64))
    assert full == 1000 + 2 * 10 + 4 * 64 * 0.5
    moved, through = longest.moved(64, 64, full)
    assert (moved, through) == (64 * full, 64)
    # What is moved above what must be read is the caches'.
    more, _ = longest.moved(64, 64, 1000 + 2 * (full - 1000))
    assert more == 64 * (1000 + 2 * (full - 1000))


def test_a_longest_caption_is_read_as_far_as_it_is_written() -> None:
    """Two groups of two captions of 64 tokens by a kernel that goes by lengths, 8 tokens a call, in blocks of 8."""
    by_length = decoding(ONE, groups=2, block=8)
    moved, through = by_length.moved(64, 64)
    # Before call k there are 8 k columns; its own tokens lie in a block beside them.
    columns = sum(8 * (k + 1) for k in range(8)) * 8
    assert through == 64
    assert moved == 64 * 1000 + 64 * 2 * 10 + 4 * columns * 0.5
    # With the largest caches throughout it would be nearly twice the captions.
    assert columns / (64 * 64) == pytest.approx(0.56, abs=0.01)


def test_shorter_captions_and_more_slots_cost_less() -> None:
    sizes = decoding(SEVERAL)
    full = sizes.read(Shape(2, 2, 64))
    assert sizes.moved(16, 60, full)[0] < sizes.moved(32, 60, full)[0]
    assert sizes.moved(16, 60, full)[0] < decoding(ONE).moved(16, 60, full)[0]
    wide = ShapeBuckets.build(slots=4, candidates=2, width=64, chunk=8, factor=2, rows=1)
    assert decoding(wide).moved(16, 60, 0)[1] < sizes.moved(16, 60, full)[1]


def test_a_kernel_that_goes_by_lengths_is_charged_each_caption_to_its_own() -> None:
    """Two groups of two captions; tokens 0 to 2 of the first, 0 and 1 of the second, in blocks of 4 columns."""
    (call,) = decode_calls(ONE, 1, 8, np.array([[3, 1], [2, 0]]))
    # The new tokens of a call begin at a block of their own: 4 columns for each caption that goes on, the prompts with.
    read = (3 + 1 + 2) * 4 * 0.5 + (3 + 2) * 10
    assert decoding(ONE, block=4).caches(call) == read
    assert decoding(ONE).caches(call) == 3 * (2 * 10 + 4 * 64 * 0.5)
    later = call._replace(steps=call.steps + 5)  # and 5 columns of before: two blocks
    assert decoding(ONE, block=4).caches(later) == read + (3 + 1 + 2) * 8 * 0.5


def test_lengths_cost_less_than_widths() -> None:
    full = decoding(SEVERAL).read(Shape(2, 2, 64))
    assert decoding(SEVERAL, block=4).moved(16, 60, full)[0] < decoding(SEVERAL).moved(16, 60, full)[0]


def test_groups_that_outgrow_short_caches_are_decoded_last() -> None:
    """Groups of 16, 40, 8 and 8 tokens, four at a time up to 16, then one at a time."""
    lengths = np.array([[16, 9], [40, 40], [8, 3], [8, 8]])
    short = ShapeBuckets.build(slots=4, candidates=2, width=16, chunk=8, factor=1, rows=1)
    one = ShapeBuckets.build(slots=1, candidates=2, width=64, chunk=8, factor=2, rows=1).beyond(16)
    calls = list(decode_calls(one, 1, 8, lengths, short))
    # The second group is seen to be longer after 24 tokens, and has 16 more to go.
    assert [call[:2] for call in calls] == [(Shape(4, 2, 16), 8)] * 3 + [(Shape(1, 2, 32), 8)] * 2
    assert calls[3].steps.tolist() == [[24]]
    assert calls[3].left.tolist() == [[[16, 16]]]
    # Where all captions are short, long caches are never made.
    few = decode_calls(one, 1, 8, lengths[[0, 2, 3]], short)
    assert [call.shape for call in few] == [Shape(4, 2, 16)] * 2


def test_short_caches_cost_less_time_for_short_captions() -> None:
    few = decoding(ShapeBuckets.build(slots=1, candidates=2, width=64, chunk=8, factor=2, rows=1), groups=8)
    short = ShapeBuckets.build(slots=4, candidates=2, width=16, chunk=8, factor=2, rows=1)
    more = replace(few, buckets=few.buckets.beyond(16), short=short)
    assert more.moved(8, 12, 0)[0] < few.moved(8, 12, 0)[0] / 2
    # Longer ones are all drawn one after the other in either case, after a common beginning.
    assert more.moved(50, 64, 0)[1] < few.moved(50, 64, 0)[1]


@pytest.mark.parametrize(
    ("early", "late", "start", "columns"),
    [
        (0, 0, 128, 0),  # ended
        (1, 0, 128, 64),
        (64, 1, 128, 128),
        (65, 64, 128, 192),
        (0, 1, 100, 64),  # the block of columns 64 to 127
        (100, 30, 100, 256),  # which both ranges have columns in
    ],
)
def test_whole_blocks_are_read(early: int, late: int, start: int, columns: int) -> None:
    assert columns_read(np.array(early), np.array(late), start=start, block=64) == columns
