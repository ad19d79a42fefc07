"""Reads facts out of pixels: the adjudicator's eyes.

A picture is cut into its cells. In each, the background is what the border of the cell shows, and what
differs from it is an object: its colour is the nearest of the palette, its size follows from its extent, its
shape from the nearest of a few rendered outlines, its motion from the way of its centre through a shot.
Nothing else is used, so a picture that went through PNG, JPEG or H.264 is read the same way. A picture that
is not of this world is read too: what looks like none of the shapes is an object about which nothing is
known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from PIL import Image

from vcap_jax.world.grammar import BACKGROUND
from vcap_jax.world.rendering import EXTENTS, VIDEO_EXTENT, shape_mask
from vcap_jax.world.scenes import (
    BACKGROUNDS,
    CELL,
    COLOURS,
    IMAGE_GRID,
    IMAGE_PLACES,
    SHAPES,
    VIDEO_FPS,
    VIDEO_GRID,
    VIDEO_PLACES,
)
from vcap_jax.world.sentences import Facts, Slot
from vcap_jax.world.video_grammar import CUT

_CONTRAST = 42.0
"""Euclidean RGB distance from the background at which a pixel belongs to an object."""
_LEAST_PIXELS = 14
_LEAST_WAY = 2.0
"""Pixels between the first and the last place of something that moves."""
_CUT_CONTRAST = 24.0
"""Euclidean RGB distance between the backgrounds of two frames of different shots."""
_OUTLINE = 16
_STRANGE = 0.30
"""Relative distance from the nearest outline above which a thing has no shape of this world."""
_OBJECT_COLOURS = np.array(list(COLOURS.values()), np.float32)
_BACKGROUND_COLOURS = np.array(list(BACKGROUNDS.values()), np.float32)
_BORDER = np.ones((CELL, CELL), bool)
_BORDER[1:-1, 1:-1] = False
_PIXEL = np.arange(CELL, dtype=np.float32) + 0.5
_PLANE = np.stack(
    [np.ones((CELL, CELL), np.float32), *np.meshgrid(_PIXEL - CELL / 2, _PIXEL - CELL / 2)], axis=-1
)
"""Constant and slopes: the background of a cell is a plane through what its border shows, [32, 32, 3]."""
_LUMA = np.array([0.299, 0.587, 0.114], np.float32) / math.sqrt(0.299**2 + 0.587**2 + 0.114**2)
_TRUST = (0.15 * np.eye(3) + 0.85 * np.outer(_LUMA, _LUMA)).astype(np.float32)
"""Weights of a colour difference: all of what changes brightness, some of what changes only hue."""
_PLANE_FIT = np.linalg.pinv(_PLANE[_BORDER])


@dataclass(frozen=True, kw_only=True)
class Thing:
    """What stands in one cell of one picture.

    colour: mean RGB of its most distinct pixels. coverage: float32 [32, 32], how much of each pixel it fills.
    centre: (x, y) in pixels of the cell. radius: root mean square distance of it from its centre, in pixels.
    area: pixels.
    """

    colour: np.ndarray
    coverage: np.ndarray
    centre: tuple[float, float]
    radius: float
    area: float


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What a picture or a clip shows.

    facts: slot -> value, as far as it could be told.
    unknown: slots about which the pixels decide nothing (the motion of an object seen only once, all about a
        thing of no known shape). Any other slot that ``facts`` lacks is empty: a claim about it is false.
    shots: start and end of each shot in seconds; none for an image.
    prominence: pixels covered by the object, by the slot's owner (the slot without its attribute).
    """

    facts: Facts
    unknown: frozenset[Slot]
    shots: tuple[tuple[float, float], ...]
    prominence: dict[Slot, float]

    def verdict(self, slot: Slot, value: str) -> bool | None:
        """Whether the pixels support the claim; None where they decide nothing."""
        if slot in self.unknown:
            return None
        return self.facts.get(slot) == value


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A picture as it was read, cell by cell, before anything is named.

    grounds: backgrounds [cells, 3]. things: what stands in the cells that are not empty, n of them.
    shape_distances: of the things from the known shapes [n, 6], relative. colours: of the things [n, 3].
    left_over: root mean square RGB distance between the pixels and what was read, drawn again.
    """

    grounds: np.ndarray
    things: tuple[Thing, ...]
    shape_distances: np.ndarray
    colours: np.ndarray
    left_over: float


def read_cells(picture: np.ndarray, grid: int) -> Reading:
    """Reads a picture, uint8 [H, W, 3] of any size, as ``grid`` x ``grid`` cells.

    Raises ValueError for anything that is not such an array.
    """
    grounds, delta = _before_ground(_cells(picture, grid))
    cells = _in_front(grounds, delta)
    left_over = delta.copy()
    for k, thing in enumerate(cells):
        if thing is not None:
            left_over[k] -= thing.coverage[..., None] * (thing.colour - grounds[k])
    things = tuple(thing for thing in cells if thing is not None)
    return Reading(
        grounds=grounds,
        things=things,
        shape_distances=np.array([_shape_distances(thing) for thing in things]).reshape(-1, len(SHAPES)),
        colours=np.array([thing.colour for thing in things]).reshape(-1, 3),
        left_over=float(np.sqrt(np.square(left_over).sum(-1).mean())),
    )


def _cells(picture: np.ndarray, grid: int) -> np.ndarray:
    """uint8 [H, W, 3] of any size -> float32 [grid * grid, 32, 32, 3], cells in reading order."""
    edge = grid * CELL
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(f"a picture is uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}")
    if picture.shape[:2] != (edge, edge):
        picture = np.asarray(Image.fromarray(picture).resize((edge, edge), Image.Resampling.BOX))
    cells = picture.reshape(grid, CELL, grid, CELL, 3).swapaxes(1, 2)
    return cells.reshape(grid * grid, CELL, CELL, 3).astype(np.float32)


def _before_ground(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Backgrounds [n, 3] (middle of the cell) of n cells, and by how much each pixel differs from its cell's
    [n, 32, 32, 3]."""
    planes = _PLANE_FIT @ cells[:, _BORDER]
    return planes[:, 0], cells - (_PLANE.reshape(-1, 3) @ planes).reshape(cells.shape)


def _things(cells: np.ndarray) -> tuple[np.ndarray, list[Thing | None]]:
    """Backgrounds [n, 3] of n cells and what stands in front of them."""
    grounds, delta = _before_ground(cells)
    return grounds, _in_front(grounds, delta)


def _in_front(grounds: np.ndarray, delta: np.ndarray) -> list[Thing | None]:
    """What stands in each cell, from what ``_before_ground`` gives."""
    # Light and texture scale a background; paint changes its hue, so what only scales counts half.
    scaling = grounds + 40
    scaling /= np.sqrt(np.square(scaling).sum(-1, keepdims=True))
    along = (delta.reshape(len(delta), -1, 3) @ scaling[..., None]).reshape(delta.shape[:3])
    contrast = np.sqrt(np.maximum(np.einsum("nyxc,nyxc->nyx", delta, delta) - 0.75 * np.square(along), 0))
    counts = (contrast > _CONTRAST).sum(axis=(1, 2))
    return [
        _thing(delta[k], contrast[k], grounds[k]) if count >= _LEAST_PIXELS else None
        for k, count in enumerate(counts)
    ]


def _thing(delta: np.ndarray, contrast: np.ndarray, ground: np.ndarray) -> Thing:
    """The thing in a cell, from the difference to its background [32, 32, 3] and its strength [32, 32]."""
    strongest = float(np.partition(contrast.ravel(), -_LEAST_PIXELS)[-_LEAST_PIXELS:].mean())
    direction = delta[contrast > 0.8 * strongest].mean(axis=0)
    # After JPEG or H.264 brightness shows an outline at full resolution, hue at half: trust them accordingly.
    weighted = _TRUST @ direction
    share = delta @ weighted / float(direction @ weighted)
    # What is less than a quarter paint is texture or a trace of compression.
    coverage = np.clip((share - 0.25) / 0.5, 0, 1)
    total = float(coverage.sum())
    columns, rows = coverage.sum(axis=0), coverage.sum(axis=1)
    x, y = float(columns @ _PIXEL) / total, float(rows @ _PIXEL) / total
    spread = float(columns @ np.square(_PIXEL - x) + rows @ np.square(_PIXEL - y)) / total
    return Thing(
        colour=ground + direction, coverage=coverage, centre=(x, y), radius=math.sqrt(spread), area=total
    )


def _outline(coverage: np.ndarray, centre: tuple[float, float], radius: float) -> np.ndarray:
    """Coverage around the centre, out to 2.2 radii, at a fixed resolution: [256], free of place and size."""
    reach = 2.2 * radius
    (x, y), step = centre, 2 * reach / _OUTLINE
    view = Image.fromarray(coverage.astype(np.float32)).transform(
        (_OUTLINE, _OUTLINE),
        Image.Transform.AFFINE,
        (step, 0, x - reach, 0, step, y - reach),
        Image.Resampling.BILINEAR,
    )
    return np.asarray(view, np.float32).ravel()


@lru_cache(maxsize=1)
def _known_outlines() -> tuple[np.ndarray, np.ndarray]:
    """Outlines [6, n, 256] of the rendered shapes in several sizes, tilts and positions; their squares' sums.

    Half of them at half resolution: so looks, after compression, what differs from its background only in
    hue.
    """
    extents = [sum(EXTENTS["small"]) / 2, sum(VIDEO_EXTENT) / 2, sum(EXTENTS["large"]) / 2]
    outlines = [
        [
            _outline(thing.coverage, thing.centre, thing.radius)
            for extent in extents
            for tilt in (-6, -2, 2, 6)
            for shift in (0.0, 0.5)
            for halved in (False, True)
            for thing in [_example(shape, extent, math.radians(tilt), CELL / 2 + shift, halved)]
        ]
        for shape in SHAPES
    ]
    known = np.array(outlines)
    return known, np.square(known).sum(-1)


def _example(shape: str, extent: float, tilt: float, middle: float, halved: bool = False) -> Thing:
    coverage = shape_mask(shape, (middle, middle), extent, tilt, CELL)
    if halved:
        small = Image.fromarray(coverage).reduce(2)
        coverage = np.asarray(small.resize((CELL, CELL), Image.Resampling.BILINEAR))
    delta: np.ndarray = coverage[..., None] * np.full(3, 100, np.float32)
    return _thing(delta, 173 * coverage, np.zeros(3, np.float32))


@lru_cache(maxsize=1)
def _size_borders() -> dict[str, float]:
    """By shape, the radius halfway between the largest small object and the smallest large one."""
    extent = (EXTENTS["small"][1] + EXTENTS["large"][0]) / 2
    return {shape: _example(shape, extent, 0.0, CELL / 2).radius for shape in SHAPES}


def _shape_distances(thing: Thing) -> np.ndarray:
    """Relative distance of a thing from each shape [6]: below 0.1 for a clear case, 1 for no likeness."""
    known, lengths = _known_outlines()
    outline = _outline(thing.coverage, thing.centre, thing.radius)
    length = float(outline @ outline)
    if length == 0:  # around the centre of a photograph's strange thing there may be nothing
        return np.full(len(SHAPES), np.inf)
    return (lengths - 2 * (known @ outline)).min(axis=1) / length + 1


def _nearest(colour: np.ndarray, palette: np.ndarray, names: Sequence[str]) -> str:
    return names[int(np.square(palette - colour).sum(1).argmin())]


def see_image(picture: np.ndarray) -> Sight:
    """Reads a picture, uint8 [H, W, 3] of any size, as an image scene.

    Raises ValueError for anything that is not such an array.
    """
    grounds, things = _things(_cells(picture, IMAGE_GRID))
    facts: Facts = {}
    unknown: set[Slot] = set()
    prominence: dict[Slot, float] = {}
    for place, thing in zip(IMAGE_PLACES, things, strict=True):
        if thing is None:
            continue
        prominence[place,] = thing.area
        distances = _shape_distances(thing)
        if distances.min() > _STRANGE:
            unknown |= {(place, attribute) for attribute in ("shape", "colour", "size")}
            continue
        facts[place, "shape"] = shape = SHAPES[int(distances.argmin())]
        facts[place, "colour"] = _nearest(thing.colour, _OBJECT_COLOURS, tuple(COLOURS))
        facts[place, "size"] = "small" if thing.radius < _size_borders()[shape] else "large"
    facts[BACKGROUND] = _nearest(np.median(grounds, axis=0), _BACKGROUND_COLOURS, tuple(BACKGROUNDS))
    return Sight(facts=facts, unknown=frozenset(unknown), shots=(), prominence=prominence)


def _shot_starts(grounds: np.ndarray) -> list[int]:
    """First frames of the shots, from backgrounds [T, cells, 3]."""
    change = np.sqrt(np.square(np.diff(grounds, axis=0)).sum(-1))
    return [0, *(np.flatnonzero(np.median(change, axis=1) > _CUT_CONTRAST) + 1).tolist()]


def _motion(centres: Sequence[tuple[float, float]]) -> str | None:
    """Direction of a way in pixels (y downwards); None for a single point."""
    if len(centres) < 2:
        return None
    dx, dy = centres[-1][0] - centres[0][0], centres[-1][1] - centres[0][1]
    if max(abs(dx), abs(dy)) < _LEAST_WAY:
        return "still"
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def see_video(frames: Sequence[np.ndarray], times: Sequence[float]) -> Sight:
    """Reads frames as a video scene.

    Args:
        frames: uint8 [H, W, 3] each, of any size, at least one, in order of time.
        times: seconds of each frame, ascending. The last frame is taken to last as long as the frames usually
            do.

    Returns:
        Shots and facts, slots numbered by the shots seen. ("video", "cut") is known if there is exactly one
        cut.

    Raises:
        ValueError: no frames, not as many times as frames, or a frame that is no picture.
    """
    if not len(frames) or len(frames) != len(times):
        raise ValueError(
            f"{len(frames)} frames and {len(times)} times: give one time for each of at least one frame"
        )
    seen = [_things(_cells(frame, VIDEO_GRID)) for frame in frames]
    starts = _shot_starts(np.stack([grounds for grounds, _ in seen]))
    spacing = float(np.median(np.diff(times))) if len(times) > 1 else 1 / VIDEO_FPS
    ends = [*starts[1:], len(frames)]
    limits = [*(float(times[start]) for start in starts), float(times[-1]) + spacing]

    facts: Facts = {}
    unknown: set[Slot] = set()
    prominence: dict[Slot, float] = {}
    for shot, (first, last) in enumerate(zip(starts, ends, strict=True)):
        for cell, place in enumerate(VIDEO_PLACES):
            track = [thing for _, things in seen[first:last] if (thing := things[cell]) is not None]
            if 2 * len(track) <= last - first:
                continue
            prominence[shot, place] = float(np.mean([thing.area for thing in track]))
            distances = np.mean([_shape_distances(thing) for thing in track], axis=0)
            if distances.min() > _STRANGE:
                unknown |= {(shot, place, attribute) for attribute in ("shape", "colour", "motion")}
                continue
            facts[shot, place, "shape"] = SHAPES[int(distances.argmin())]
            colour = np.mean([thing.colour for thing in track], axis=0)
            facts[shot, place, "colour"] = _nearest(colour, _OBJECT_COLOURS, tuple(COLOURS))
            motion = _motion([thing.centre for thing in track])
            if motion is None:
                unknown.add((shot, place, "motion"))
            else:
                facts[shot, place, "motion"] = motion
    if len(starts) == 2:
        facts[CUT] = f"{limits[1]:.1f}"
    elif len(starts) > 2:
        unknown.add(CUT)
    shots = tuple(pairwise(limits))
    return Sight(facts=facts, unknown=frozenset(unknown), shots=shots, prominence=prominence)
