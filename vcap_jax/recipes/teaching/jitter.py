"""Pictures moved by a few pixels: what they show stays as it is, and they are never quite the same twice.

Objects keep off the borders of their places by more than they are moved, so no fact changes. Without this the vision
tower learned 9,000 pictures by heart: shapes that it had met were told apart in 97 of 100 cases, others in 83.
"""

from __future__ import annotations

import numpy as np

from vcap_jax.world.backbone import IMAGE_SETTINGS

MOST = {"image": 3, "video": 1}
"""Pixels along each axis, at most, by modality."""
_GAIN = 0.03
"""How much brighter or darker a channel becomes, at most."""
_CHANNELS = 3


def jittered(patches: np.ndarray, grid: tuple[int, int], most: int, rng: np.random.Generator) -> np.ndarray:
    """Each picture or clip moved as a whole by up to ``most`` pixels, edges repeated; its channels a little brighter or
    darker.

    patches: uint8 [B, frames, patches, numbers] as the vision tower takes them. grid: rows and columns of a frame's
    visual tokens.
    """
    size, merge = IMAGE_SETTINGS.patch_size, IMAGE_SETTINGS.merge_size
    batch, frames, _, numbers = patches.shape
    depth = numbers // (_CHANNELS * size**2)
    blocks = (batch, frames, *grid, merge, merge, _CHANNELS, depth, size, size)
    # -> picture, frame, channel, time, rows, columns
    pixels = patches.reshape(blocks).transpose(0, 1, 6, 7, 2, 4, 8, 3, 5, 9)
    height, width = (edge * merge * size for edge in grid)
    pixels = pixels.reshape(batch, frames, _CHANNELS, depth, height, width)
    room = [(0, 0)] * 4 + [(most, most)] * 2
    wide = np.pad(pixels, room, mode="edge")
    down, right = rng.integers(0, 2 * most + 1, (2, batch)).tolist()
    moved = np.stack(
        [wide[b, ..., down[b] : down[b] + height, right[b] : right[b] + width] for b in range(batch)]
    )
    gain = rng.uniform(1 - _GAIN, 1 + _GAIN, (batch, 1, _CHANNELS, 1, 1, 1)).astype(np.float32)
    lit = np.clip(np.rint(moved * gain), 0, 255).astype(np.uint8)
    rows, columns = grid
    lit = lit.reshape(batch, frames, _CHANNELS, depth, rows, merge, size, columns, merge, size)
    return lit.transpose(0, 1, 4, 7, 5, 8, 2, 3, 6, 9).reshape(patches.shape)
