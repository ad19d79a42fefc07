"""Tells from pixels alone whether a picture or a clip is one of this world's.

The readers (``image_perception``, ``video_perception``) answer whatever they are shown, also about a photograph. Here
their answer is held against the pixels. A picture of this world is one of its backgrounds in some light, and before it
objects in its paints: next to nothing else is left over. The light on a picture falls from a side, and a clip's
background bears a texture. And what stands there is as many things as its scenes have, whose shapes can be told. A
drawing by somebody else that keeps to all of this is recognised too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from vcap_jax.world.drawing import tones
from vcap_jax.world.image_perception import see_image
from vcap_jax.world.scenes import IMAGE_EDGE, VIDEO_EDGE
from vcap_jax.world.sight import Sight, brought_to_size
from vcap_jax.world.video_perception import see_video
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, VIDEO_FPS

_IMAGE_THINGS = range(4, 10)
_SHOT_THINGS = range(1, 4)
_DARK = 50.0
"""A background's light and texture scale its colour plus about this."""
_MOST_SHADE = 0.35
_GROUND = 16.0
"""RGB distance of a pixel from a background in some light, up to which it belongs to it."""
_PAINT = 34.0
"""RGB distance of a pixel from the nearest paint. JPEG halves the resolution of hue."""
_AROUND, _MUCH = 9, 0.4
"""Edges are neither: something else is where more than this share of a pixel's surroundings is, this many wide."""
_LEFT_OVER = 0.02
"""Share of the pixels around which something else is. Seen: up to 0.009 (JPEG of quality 90)."""
_LIGHT = (0.17, 0.34)
"""By how much a background is brighter at one side of a picture than at the other. Seen: 0.21 to 0.29."""
_ACROSS = 0.04
"""The same across the light, at most. Seen: up to 0.02."""
_IMAGE_TEXTURE = (0.0, 0.05)
"""Standard deviation of a background's brightness, its light left aside. Seen: up to 0.03 in pictures."""
_VIDEO_TEXTURE = (0.045, 0.12)
"""Seen: 0.06 to 0.09 in clips."""
_IMAGE_GROUND = (0.5, 0.97)
"""Share of the pixels that show the background. Seen: 0.63 to 0.94 in pictures."""
_VIDEO_GROUND = (0.7, 1.0)
"""Seen: from 0.8 on in clips, whose objects come and go."""
_GROUNDS = np.array(list(BACKGROUNDS.values()), np.float32)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """How a picture looks beside this world's.

    ground: share of its pixels that show the background which fits best. left_over: share around which much shows
    neither that nor a paint. light: by how much the background is brighter at the right and at the lower side than
    opposite. texture: standard deviation of its brightness otherwise.
    """

    ground: float
    left_over: float
    light: tuple[float, float]
    texture: float


def is_world_image(picture: np.ndarray) -> bool:
    """Whether a picture, uint8 [H, W, 3] of any size, shows an image scene of this world.

    Raises ValueError for anything that is not such an array.
    """
    sight = see_image(picture)
    if picture.shape[0] != picture.shape[1] or len(sight.prominence) not in _IMAGE_THINGS:
        return False
    look = _look(picture, IMAGE_EDGE)
    light = sorted(map(abs, look.light))
    return (
        _plain(look, _IMAGE_GROUND, _IMAGE_TEXTURE)
        and light[0] <= _ACROSS
        and _LIGHT[0] <= light[1] <= _LIGHT[1]
        and _shapes_told(sight) >= len(sight.prominence) / 2
    )


def is_world_video(frames: Sequence[np.ndarray]) -> bool:
    """Whether all frames, uint8 [H, W, 3] each, of any size, at least one, show a video scene of this world.

    Raises ValueError for no frames, or a frame that is not such an array.
    """
    if not len(frames):
        raise ValueError("no frames: give at least one")
    sight = see_video(frames, [index / VIDEO_FPS for index in range(len(frames))])
    things = [sum(owner[0] == shot for owner in sight.prominence) for shot in range(len(sight.shots))]
    if any(count not in _SHOT_THINGS for count in things) or _shapes_told(sight) < sum(things):
        return False
    return all(
        frame.shape[0] == frame.shape[1] and _plain(_look(frame, VIDEO_EDGE), _VIDEO_GROUND, _VIDEO_TEXTURE)
        for frame in frames
    )


def _shapes_told(sight: Sight) -> int:
    return sum((*owner, "shape") in sight.facts for owner in sight.prominence)


def _plain(look: _Look, ground: tuple[float, float], texture: tuple[float, float]) -> bool:
    return (
        ground[0] <= look.ground <= ground[1]
        and texture[0] <= look.texture <= texture[1]
        and look.left_over <= _LEFT_OVER
    )


def _look(picture: np.ndarray, edge: int) -> _Look:
    """A picture as it was brought to ``edge`` pixels square."""
    pixels = brought_to_size(picture, edge).astype(np.float32)
    # In some light or texture of strength s, a background c looks like c + s (c + _DARK).
    along = _GROUNDS + _DARK
    away = pixels[..., None, :] - _GROUNDS
    shade = np.clip((away * along).sum(-1) / np.square(along).sum(-1), -_MOST_SHADE, _MOST_SHADE)
    near = np.linalg.norm(away - shade[..., None] * along, axis=-1) < _GROUND
    best = int(near.sum(axis=(0, 1)).argmax())
    ground, shade = near[..., best], shade[..., best]
    share = float(ground.mean())
    if share < 0.1:  # then it is none of this world's, and there is too little to tell its light by
        return _Look(ground=share, left_over=1.0, light=(0.0, 0.0), texture=0.0)
    strange = ~ground & (_paint_distance(pixels) > _PAINT)
    else_there = ndimage.uniform_filter(strange.astype(np.float32), _AROUND) > _MUCH
    rows, columns = np.mgrid[0:edge, 0:edge] / edge - 0.5
    plane = np.stack([np.ones(ground.sum()), columns[ground], rows[ground]], axis=1)
    fitted = np.linalg.lstsq(plane, shade[ground], rcond=None)[0]
    return _Look(
        ground=share,
        left_over=float(else_there.mean()),
        light=(float(fitted[1]), float(fitted[2])),
        texture=float(np.std(shade[ground] - plane @ fitted)),
    )


def _paint_distance(pixels: np.ndarray) -> np.ndarray:
    """RGB distance [H, W] of pixels [H, W, 3] from the nearest paint: a colour, or what a pattern makes of it."""
    nearest = np.full(pixels.shape[:2], np.inf, np.float32)
    for colour in COLOURS:
        dark, base, light = tones(colour)
        for start, end in ((dark, base), (base, light)):
            way = end - start
            away = pixels - start
            part = np.clip(away @ way / (way @ way), -0.12, 1.12)
            nearest = np.minimum(nearest, np.linalg.norm(away - part[..., None] * way, axis=-1))
    return nearest
