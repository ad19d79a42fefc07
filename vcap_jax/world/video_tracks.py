"""What stands in the quarters of a clip's frames, in pixels and before anything is named.

A background's texture changes its brightness alone, and every colour of an object differs from every background in hue:
so an object is found by what no change of the background's brightness explains. Its outline is then read by the mixture
of hue and brightness that tells it best from the texture. Nothing but pixels is used, so a clip is read the same way
whatever it went through.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image
from scipy.ndimage import maximum_filter

from vcap_jax.world.drawing import shape_mask
from vcap_jax.world.scenes import VIDEO_EDGE
from vcap_jax.world.video_scenes import QUARTER, VIDEO_EXTENTS
from vcap_jax.world.vocabulary import SHAPES, SIZES

QUARTERS = 4
SURE_CONTRAST = 30.0
"""RGB distance from the background, its brightness left aside, at which a pixel belongs to an object."""
_LEAST_PIXELS = 24
_DARK = 60.0
"""A background's texture scales its colour plus about this."""
_TEXTURE = 20.0
"""Standard deviation of a texture's brightness, and of what else differs, in RGB: how much each is to be trusted."""
_NOISE = 8.0
_AROUND = 5
"""Pixels of the neighbourhood in which an object's outline may lie around what is surely it."""
_OUTLINE = 16
_REACH = 2.2
"""How far an outline is looked at, in radii."""
_PIXEL = np.arange(QUARTER, dtype=np.float32) + 0.5


@dataclass(frozen=True, kw_only=True)
class Things:
    """What stands in one quarter, in the n frames of a shot in which something does.

    frames: int [n], counted from the shot's first. colours: RGB [n, 3]. centres: (x, y) in pixels of the quarter
    [n, 2]. radii: root mean square distance of the object's pixels from its centre [n]. areas: pixels [n]. outlines:
    free of place and size, float32 [n, 256].
    """

    frames: np.ndarray
    colours: np.ndarray
    centres: np.ndarray
    radii: np.ndarray
    areas: np.ndarray
    outlines: np.ndarray


def quarters(frames: np.ndarray) -> np.ndarray:
    """[T, 96, 96, ...] -> [T, 4, 48, 48, ...], quarters in reading order."""
    rest = frames.shape[3:]
    cells = frames.reshape(len(frames), 2, QUARTER, 2, QUARTER, *rest).swapaxes(2, 3)
    return cells.reshape(len(frames), QUARTERS, QUARTER, QUARTER, *rest)


def whole(cells: np.ndarray) -> np.ndarray:
    """[T, 4, 48, 48] -> [T, 96, 96]: the inverse of ``quarters``."""
    rows = cells.reshape(len(cells), 2, 2, QUARTER, QUARTER).swapaxes(2, 3)
    return rows.reshape(len(cells), VIDEO_EDGE, VIDEO_EDGE)


def grounds(frames: np.ndarray) -> np.ndarray:
    """Background colours [T, 3] of frames [T, 96, 96, 3]: the medians, as objects cover less than a quarter of them."""
    return np.median(frames[:, ::2, ::2].reshape(len(frames), -1, 3), axis=1)


def texture_direction(ground: np.ndarray) -> np.ndarray:
    """The unit vector of RGB along which a background's texture changes it."""
    scaled = ground + _DARK
    return scaled / math.sqrt(float(scaled @ scaled))


def hue_contrast(delta: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Length of differences of colour [..., 3] whose part ``along`` [...] the texture's direction is left aside."""
    return np.sqrt(np.maximum(np.einsum("...c,...c->...", delta, delta) - np.square(along), 0))


def find_things(delta: np.ndarray, contrast: np.ndarray, ground: np.ndarray) -> Things | None:
    """What stands in one quarter in the frames of a shot; None where nothing does in any.

    delta: differences from the background, float32 [T, 48, 48, 3]. contrast: their ``hue_contrast`` [T, 48, 48].
    ground: the background [3].
    """
    frames = np.flatnonzero((contrast > SURE_CONTRAST).sum(axis=(1, 2)) >= _LEAST_PIXELS)
    if not len(frames):
        return None
    delta, contrast = delta[frames], contrast[frames]
    count = len(frames)
    flat = contrast.reshape(count, -1)
    strongest = np.partition(flat, -_LEAST_PIXELS, axis=1)[:, -_LEAST_PIXELS:].mean(axis=1)
    sure = (contrast > 0.8 * strongest[:, None, None]).astype(np.float32).reshape(count, 1, -1)
    paint = (sure @ delta.reshape(count, -1, 3))[:, 0] / sure.sum(axis=2)
    texture = texture_direction(ground)
    # The direction that tells paint from texture and noise best (Fisher's): the inverse of their covariance.
    kept = _TEXTURE**2 / (_NOISE**2 + _TEXTURE**2)
    weights = paint - kept * (paint @ texture)[:, None] * texture
    share = (delta.reshape(count, -1, 3) @ weights[:, :, None]).reshape(contrast.shape)
    share /= (paint * weights).sum(axis=1)[:, None, None]
    # What is less than a quarter paint is texture or a trace of compression.
    coverage = np.clip((share - 0.25) / 0.5, 0, 1)
    near = (contrast > 0.5 * strongest[:, None, None]).astype(np.uint8)
    coverage *= maximum_filter(near, (1, _AROUND, _AROUND))
    centres, radii, areas = _moments(coverage)
    outlines = np.array([_outline(coverage[k], centres[k], radii[k]) for k in range(count)])
    return Things(
        frames=frames, colours=ground + paint, centres=centres, radii=radii, areas=areas, outlines=outlines
    )


def _moments(coverage: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centres [n, 2], radii [n] and areas [n] of coverages [n, 48, 48]."""
    columns, rows = coverage.sum(axis=1), coverage.sum(axis=2)
    areas = np.maximum(columns.sum(axis=1), 1e-3)
    x, y = columns @ _PIXEL / areas, rows @ _PIXEL / areas
    spread = (columns * np.square(_PIXEL - x[:, None])).sum(axis=1)
    spread += (rows * np.square(_PIXEL - y[:, None])).sum(axis=1)
    return np.stack([x, y], axis=1), np.sqrt(spread / areas), areas


def _outline(coverage: np.ndarray, centre: np.ndarray, radius: float) -> np.ndarray:
    """Coverage around the centre at a fixed resolution [256], free of place and size."""
    reach = _REACH * max(float(radius), 0.5)
    x, y = float(centre[0]), float(centre[1])
    step = 2 * reach / _OUTLINE
    view = Image.fromarray(coverage.astype(np.float32, copy=False)).transform(
        (_OUTLINE, _OUTLINE),
        Image.Transform.AFFINE,
        (step, 0, x - reach, 0, step, y - reach),
        Image.Resampling.BILINEAR,
    )
    return np.asarray(view, np.float32).ravel()


@cache
def _known() -> tuple[np.ndarray, np.ndarray]:
    """Outlines of the shapes as they are drawn, [8, m, 256], and radii [8] halfway between small and large objects.

    Shapes in both sizes, several tilts and places; half of them at half the resolution: so looks, after compression,
    what differs from its background in hue alone."""
    extents = [sum(VIDEO_EXTENTS[size]) / 2 for size in SIZES]
    outlines = []
    for shape in SHAPES:
        masks = [
            _halved(mask) if halved else mask
            for extent in extents
            for tilt in (-6, -2, 2, 6)
            for shift in (0.0, 0.5)
            for mask in [shape_mask(shape, (QUARTER / 2 + shift,) * 2, extent, math.radians(tilt), QUARTER)]
            for halved in (False, True)
        ]
        outlines.append(_examples(np.array(masks)).outlines)
    between = (VIDEO_EXTENTS["small"][1] + VIDEO_EXTENTS["large"][0]) / 2
    middles = [shape_mask(shape, (QUARTER / 2,) * 2, between, 0.0, QUARTER) for shape in SHAPES]
    return np.array(outlines), _examples(np.array(middles)).radii


def _halved(mask: np.ndarray) -> np.ndarray:
    small = Image.fromarray(mask).reduce(2)
    return np.asarray(small.resize((QUARTER, QUARTER), Image.Resampling.BILINEAR))


def _examples(masks: np.ndarray) -> Things:
    """What is seen where objects of these masks [n, 48, 48] stand."""
    hue = np.array((90.0, -45.0, -45.0), np.float32)  # of no brightness
    ground = np.full(3, 120.0, np.float32)
    delta = masks[..., None] * hue
    things = find_things(delta, hue_contrast(delta, delta @ texture_direction(ground)), ground)
    if things is None or len(things.frames) != len(masks):
        raise RuntimeError("a shape is drawn so small that it is not seen: see drawing.py and VIDEO_EXTENTS")
    return things


def shape_distances(things: Things) -> np.ndarray:
    """Relative distances of what is seen from each shape [8]: below 0.1 for a clear case, 1 for no likeness."""
    known, _ = _known()
    outline = things.outlines.mean(axis=0)
    length = float(outline @ outline)
    if length == 0:  # around the centre of a photograph's strange thing there may be nothing
        return np.full(len(SHAPES), np.inf)
    squares = np.square(known).sum(axis=2) - 2 * (known @ outline)
    return squares.min(axis=1) / length + 1


def size_of(things: Things, shape: str) -> str:
    """ "small" or "large", by the radius that objects of this shape have."""
    small = float(np.median(things.radii)) < _known()[1][SHAPES.index(shape)]
    return SIZES[0] if small else SIZES[1]
