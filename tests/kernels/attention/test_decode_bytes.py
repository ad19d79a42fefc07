"""Bytes of attention of new tokens, by hand for a small case, and against what is needed at the paper's sizes."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.kernels.attention.decode_bytes import columns_read, hopper_bytes
from vcap_jax.kernels.attention.hopper import Hopper

QWEN_8B = {"heads": 32, "key_heads": 8, "head_size": 128}


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


def test_bytes_of_a_small_case_by_hand() -> None:
    """One group of two captions, the second of which has ended; 4 heads that read 2 key heads of 64."""
    found = hopper_bytes(
        np.array([70]),
        np.array([[64, 0]]),
        np.array([[3, 0]]),
        start=128,
        heads=4,
        key_heads=2,
        head_size=64,
        kernel=Hopper(prompt_splits=1, caption_splits=1),
    )
    column = 2 * 64 * 2 * 2  # keys and values of 2 heads of 64 numbers of 2 bytes
    assert found.caches == (128 + 64 + 64) * column
    assert found.needed == (70 + 64 + 3) * column + 2 * 2 * 4 * 64 * 2
    # Tiles of 8 rows: 2 of the prompt's key heads, 4 of the captions'.
    assert found.rows == 6 * 8 * (3 * 64 * 2 + 2 * 65 * 4)


def test_a_group_that_has_ended_reads_nothing() -> None:
    ended = np.zeros((1, 8), int)
    assert hopper_bytes(np.array([4096]), ended, ended, start=4096, **QWEN_8B).caches == 0


@pytest.mark.parametrize(
    ("groups", "prompt", "columns"),
    [pytest.param(6, 14_336, 4096, id="image run"), pytest.param(3, 32_768, 6336, id="video run")],
)
@pytest.mark.parametrize("filled", [0.25, 0.5, 1.0])
def test_attention_moves_at_most_15_percent_more_than_it_needs(
    groups: int, prompt: int, columns: int, filled: float
) -> None:
    """Prompts and captions of uneven lengths, a fifth of the captions ended."""
    rng = np.random.default_rng(0)
    early = np.asarray(rng.uniform(0.5, 1.0, (groups, 8)) * filled * columns, int)
    early[rng.uniform(size=early.shape) < 0.2] = 0
    lengths = np.asarray(rng.uniform(0.8, 1.0, groups) * prompt, int)
    found = hopper_bytes(lengths, early, np.where(early > 0, 65, 0), start=columns, **QWEN_8B)
    assert 0 < found.excess < 0.15
