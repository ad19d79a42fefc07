"""How many columns are stored for so many caption tokens: the one place that says so.

The axis of tokens is the last one of a captions' values in some products, and of their scores. Where its length is no
multiple of the blocks that hardware reads and multiplies, the compiler copies whole arrays to others that are, in every
layer and for every token. What is added is padding: no limit on a caption's tokens moves with it.
"""

from __future__ import annotations

BLOCK = 64
"""Columns of a block: one row of a tensor core's tile, and several lines of memory whatever the type."""


def columns_for(tokens: int) -> int:
    """The columns that hold ``tokens``: the next multiple of 64; of fewer than 256 tokens that of a smaller power of
    two, so that no more than a quarter is added.

    Raises ValueError for less than one token.
    """
    if tokens < 1:
        raise ValueError(f"{tokens} tokens have no columns: give at least 1")
    block = min(BLOCK, 1 << max(0, (tokens // 4).bit_length() - 1))
    return -(-tokens // block) * block
