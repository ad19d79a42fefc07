"""What attention of new tokens reads and writes by a kernel that goes by ranges, and what it cannot do without.

Of one layer, for one token of every caption, on one device. Nothing is measured: bytes that a kernel's program asks of
memory, as if nothing stayed in a cache between two of its blocks of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vcap_jax.kernels.attention import hopper
from vcap_jax.kernels.attention.hopper import Hopper

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class TokenBytes:
    """caches: keys and values in whole blocks. rows: queries padded to tiles, parts of softmaxes written and joined.
    needed: keys and values that are seen, queries and outputs, each once."""

    caches: int
    rows: int
    needed: int

    @property
    def excess(self) -> float:
        """How much more than what is needed is moved, as a share of it."""
        return (self.caches + self.rows) / self.needed - 1


def columns_read(early: np.ndarray, late: np.ndarray, *, start: int, block: int) -> np.ndarray:
    """Columns in the blocks that a kernel reads which looks at [0, early) and [start, start + late): whole blocks,
    one in which both ranges have columns twice. early, late: integers of any one shape, which is the result's."""
    late_blocks = np.where(late > 0, -(-(start + late) // block) - start // block, 0)
    return np.asarray((-(-early // block) + late_blocks) * block)


def hopper_bytes(
    lengths: np.ndarray,
    early: np.ndarray,
    late: np.ndarray,
    *,
    start: int,
    heads: int,
    key_heads: int,
    head_size: int,
    kernel: Hopper | None = None,
    itemsize: int = 2,
) -> TokenBytes:
    """Of ``Hopper``.

    Args:
        lengths: [B] tokens of the prompts.
        early, late, start: [B, G], see ``Seen``.
        heads, key_heads: H and K of this device. head_size: d. itemsize: bytes of a number of keys and values.
        kernel: its splits; None: as they are by default.
    """
    kernel = kernel or Hopper()
    groups, captions = early.shape
    going = ((early + late) > 0).any(1)
    column = 2 * head_size * itemsize * key_heads
    heads_of_key = heads // key_heads
    prompt_tiles, prompt_rows = hopper.tiles(captions * heads_of_key)
    own_tiles, own_rows = hopper.tiles(heads_of_key)
    nothing = np.zeros_like(lengths)
    prompts = (
        columns_read(np.where(going, lengths, 0), nothing, start=0, block=hopper.BLOCK).sum() * prompt_tiles
    )
    own = columns_read(early, late, start=start, block=hopper.BLOCK).sum() * own_tiles

    def moved_rows(sets: int, rows: int, splits: int) -> int:
        """Queries put into tiles and read by every split; outputs and log-sum-exps written and read again."""
        queries = sets * rows * head_size * itemsize * (2 + splits)
        return queries + 2 * sets * rows * splits * (head_size + 1) * _FLOAT32

    rows = moved_rows(groups * key_heads, prompt_tiles * prompt_rows, kernel.prompt_splits)
    rows += moved_rows(groups * captions * key_heads, own_tiles * own_rows, kernel.caption_splits)
    seen = int(lengths[going].sum() + early.sum() + late.sum())
    queries_and_outputs = 2 * groups * captions * heads * head_size * itemsize
    return TokenBytes(
        caches=int(prompts + own) * column, rows=rows, needed=seen * column + queries_and_outputs
    )
