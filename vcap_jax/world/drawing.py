"""What shapes, patterns and glyphs look like: geometry to coverage of pixels, for pictures and clips.

Lengths are pixels, points are (x, y) with y downwards, and the centre of the pixel in row r and column c is at
(c + 0.5, r + 0.5). A mask says how much of each pixel is covered: float32 [edge, edge] in 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw

from vcap_jax.world.vocabulary import COLOURS, DIRECTED, DIRECTIONS, MARKS, PATTERNS, SHAPES

SUPERSAMPLING = 4
"""Outlines are drawn at this multiple of the resolution and averaged, so that edges are smooth."""
RING_HOLE = 0.54
"""Diameter of a ring's hole, in extents."""
DOT = 0.31
"""Diameter of the dot inside a ring, in extents of the ring."""
TURNS: Mapping[str | None, float] = {
    None: 0.0,
    **{name: math.radians(angle) for name, angle in zip(DIRECTIONS, (0, 180, 270, 90), strict=True)},
}
"""Clockwise angle by which an outline, drawn pointing up, is turned to point somewhere."""
STRIPES = 7.0
"""Period of stripes."""
DOTS = 8.0
"""Distance between neighbours of a dotted pattern."""
CHECKS = 9.0
"""Period of a checked pattern: two of its squares."""
GLYPH = (10.0, 13.0)
"""Width and height of the box around a glyph."""
_DOTTED_RADIUS = 2.4
_STROKE = 2.5
_TONE_DARK = 0.42
_TONE_LIGHT = 0.62
_WHITE = np.array((250, 250, 250), np.float32)
_BLACK = np.array((14, 14, 16), np.float32)
_LUMA = np.array((0.299, 0.587, 0.114), np.float32)
_POLYLINES: Mapping[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "1": (((-2.4, -2.6), (0.3, -5.0), (0.3, 5.0)), ((-2.5, 5.0), (3.1, 5.0))),
    "4": (((1.5, 5.0), (1.5, -5.0), (-3.5, 1.8), (3.6, 1.8)),),
    "8": (),
    "A": (((-3.6, 5.0), (0.0, -5.0), (3.6, 5.0)), ((-2.2, 1.9), (2.2, 1.9))),
    "T": (((-3.7, -4.9), (3.7, -4.9)), ((0.0, -4.9), (0.0, 5.0))),
    "X": (((-3.4, -5.0), (3.4, 5.0)), ((3.4, -5.0), (-3.4, 5.0))),
}
"""Middle lines of the strokes, in pixels from the glyph's centre."""
_LOOPS: Mapping[str, tuple[tuple[float, float], ...]] = {"8": ((-2.55, 2.55), (2.45, 2.75))}
"""Closed round strokes: how far below the glyph's centre, and radius."""


def _circle(radius: float) -> np.ndarray:
    angles = np.arange(48) * (2 * math.pi / 48)
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _crescent() -> np.ndarray:
    """A disc less a smaller one above it; the two arcs meet in the horns."""
    outer, inner, offset = 0.5, 0.41, 0.27
    height = (outer**2 - inner**2 + offset**2) / (2 * offset)
    horn, bite = math.asin(height / outer), math.asin((offset - height) / inner)
    below = np.linspace(-horn, math.pi + horn, 40)
    above = np.linspace(math.pi - bite, bite, 32)
    return np.concatenate(
        [
            outer * np.stack([np.cos(below), np.sin(below)], axis=-1),
            inner * np.stack([np.cos(above), np.sin(above)], axis=-1) - (0, offset),
        ]
    )


@cache
def shape_outline(shape: str) -> tuple[np.ndarray, np.ndarray]:
    """Outer polygon and hole of a shape, each [n, 2], n = 0 where there is no hole.

    The box around it is centred at the origin, its longer edge is 1 (0.92 for a square, which looks larger than
    others of its width), and it points up. Raises ValueError for none of ``vocabulary.SHAPES``.
    """
    hole = np.zeros((0, 2))
    match shape:
        case "circle":
            outer = _circle(0.5)
        case "ring":
            outer, hole = _circle(0.5), _circle(RING_HOLE / 2)
        case "square":
            outer = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * 0.46
        case "triangle":
            outer = np.array([(0.0, -0.5), (0.46, 0.5), (-0.46, 0.5)])
        case "star":
            radii = np.where(np.arange(10) % 2 == 0, 0.5, 0.22)
            angles = np.arange(10) * (math.pi / 5) - math.pi / 2
            outer = radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        case "cross":
            a, b = 0.5, 0.16
            quarter = np.array([(-b, -a), (b, -a), (b, -b)])
            turned = [quarter @ np.array([(c, s), (-s, c)]) for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1))]
            outer = np.concatenate(turned)
        case "arrow":
            outer = np.array(
                [(0, -0.5), (0.45, 0), (0.17, 0), (0.17, 0.5), (-0.17, 0.5), (-0.17, 0), (-0.45, 0)]
            )
        case "crescent":
            outer = _crescent()
        case _:
            raise ValueError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    low, high = outer.min(axis=0), outer.max(axis=0)
    length = 1.0 if shape == "square" else float((high - low).max())
    return (outer - (low + high) / 2) / length, hole


def turned(points: np.ndarray, angle: float) -> np.ndarray:
    """Points [n, 2] turned clockwise about the origin by ``angle`` radians."""
    cos, sin = math.cos(angle), math.sin(angle)
    return points @ np.array([(cos, sin), (-sin, cos)])


def shape_patch(
    shape: str, centre: tuple[float, float], extent: float, tilt: float, direction: str | None = None
) -> tuple[int, int, np.ndarray]:
    """Top row, left column and coverage float32 [k, k] of a window that holds the whole shape.

    centre: of the box around the shape. extent: edge of that box before it is turned. tilt: radians clockwise, besides
    the direction. direction: where a directed shape points; None is up.
    Raises ValueError for an unknown shape, and for a direction of a shape that has none.
    """
    if direction is not None and shape not in DIRECTED:
        raise ValueError(f"a {shape} has no direction; shapes that have one: {', '.join(DIRECTED)}")
    reach = math.ceil(0.72 * extent) + 1
    left, top = math.floor(centre[0]) - reach, math.floor(centre[1]) - reach
    edge = 2 * reach + 1
    canvas = Image.new("L", (edge * SUPERSAMPLING, edge * SUPERSAMPLING))
    draw = ImageDraw.Draw(canvas)
    middle = np.subtract(centre, (left, top))
    for polygon, value in zip(shape_outline(shape), (255, 0), strict=True):
        if len(polygon):
            points = extent * turned(polygon, TURNS[direction] + tilt) + middle
            # The pixel at (i, j) of the canvas stands for its middle, (i + 0.5, j + 0.5).
            draw.polygon((points * SUPERSAMPLING - 0.5).ravel().tolist(), fill=value)
    return top, left, np.asarray(canvas.reduce(SUPERSAMPLING), np.float32) / 255


def shape_mask(
    shape: str,
    centre: tuple[float, float],
    extent: float,
    tilt: float,
    edge: int,
    direction: str | None = None,
) -> np.ndarray:
    """Coverage of a picture of ``edge`` pixels by a shape: ``shape_patch`` put in its place."""
    return placed(shape_patch(shape, centre, extent, tilt, direction), edge)


def placed(patch: tuple[int, int, np.ndarray], edge: int) -> np.ndarray:
    """A patch in its place in a picture of ``edge`` pixels; what reaches out of the picture is cut off."""
    top, left, coverage = patch
    mask = np.zeros((edge, edge), np.float32)
    rows = slice(max(top, 0), min(top + coverage.shape[0], edge))
    columns = slice(max(left, 0), min(left + coverage.shape[1], edge))
    mask[rows, columns] = coverage[
        rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
    ]
    return mask


def disc_mask(centre: tuple[float, float], diameter: float, edge: int) -> np.ndarray:
    """Coverage by a filled disc: the dot inside a ring, or a ring's hole."""
    columns, rows = _offsets(centre, edge)
    return np.clip(0.5 + diameter / 2 - np.hypot(columns, rows), 0, 1)


def pattern_mask(pattern: str, centre: tuple[float, float], tilt: float, edge: int) -> np.ndarray:
    """Where a pattern shows its second tone: stripes along one diagonal, dots, or checks like a chessboard's.

    Patterns are anchored at the object's centre and tilted with it, but do not turn with its direction. Raises
    ValueError for none of ``vocabulary.PATTERNS``.
    """
    x, y = _offsets(centre, edge)
    cos, sin = math.cos(tilt), math.sin(tilt)
    across, along = x * cos + y * sin, y * cos - x * sin
    match pattern:
        case "striped":
            return _soft_wave((across + along) / math.sqrt(2), STRIPES)
        case "checked":
            one, other = _soft_wave(across, CHECKS), _soft_wave(along, CHECKS)
            return one + other - 2 * one * other
        case "dotted":
            # Every second row is shifted by half a period.
            row = np.rint(along / (DOTS * 0.87))
            shift = np.where(row % 2 == 0, 0, DOTS / 2)
            dx = across - shift - DOTS * np.rint((across - shift) / DOTS)
            return np.clip(0.5 + _DOTTED_RADIUS - np.hypot(dx, along - DOTS * 0.87 * row), 0, 1)
    raise ValueError(f"unknown pattern {pattern!r}; known: {', '.join(PATTERNS)}")


def glyph_mask(mark: str, centre: tuple[float, float], edge: int) -> np.ndarray:
    """Coverage by a digit or letter, always upright, whose box is ``GLYPH`` about the centre. Raises ValueError for
    none of ``vocabulary.MARKS``."""
    if mark not in MARKS:
        raise ValueError(f"unknown mark {mark!r}; known: {', '.join(MARKS)}")
    x, y = _offsets(centre, edge)
    distance = np.full(x.shape, np.inf, np.float32)
    for line in _POLYLINES[mark]:
        for (ax, ay), (bx, by) in pairwise(line):
            dx, dy = bx - ax, by - ay
            along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
            distance = np.minimum(distance, np.hypot(x - ax - along * dx, y - ay - along * dy))
    for below, radius in _LOOPS.get(mark, ()):
        distance = np.minimum(distance, abs(np.hypot(x, y - below) - radius))
    return np.clip(0.5 + _STROKE / 2 - distance, 0, 1)


def tones(colour: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A colour much darkened, as it is, and much lightened: RGB float32 [3] each."""
    base = np.array(COLOURS[colour], np.float32)
    return _TONE_DARK * base, base, base + _TONE_LIGHT * (_WHITE - base)


def second_tone(colour: str, ground: tuple[int, int, int]) -> tuple[np.ndarray, float]:
    """A pattern's other tone before a ground, RGB float32 [3], and how well it can be seen.

    It is the colour much darkened or much lightened: whichever is better seen, which is the lesser of its RGB
    distance from the ground and twice its difference in brightness from the colour itself.
    """
    dark, base, light = tones(colour)
    seen = [
        min(float(np.linalg.norm(tone - ground)), 2 * abs(float((tone - base) @ _LUMA)))
        for tone in (dark, light)
    ]
    return (dark, seen[0]) if seen[0] >= seen[1] else (light, seen[1])


def ink(colour: str) -> np.ndarray:
    """RGB float32 [3] of the glyphs on an object: black or white, whichever contrasts with its colour."""
    bright = float(np.array(COLOURS[colour], np.float32) @ _LUMA) > 120
    return _BLACK if bright else _WHITE


def glyph_centre(
    shape: str, centre: tuple[float, float], extent: float, tilt: float, direction: str | None = None
) -> tuple[float, float]:
    """Where a shape bears its mark: in its middle, a triangle nearer to its base, where it is wide enough."""
    if shape != "triangle":
        return centre
    x, y = extent * turned(np.array([(0.0, 0.17)]), TURNS[direction] + tilt)[0]
    return centre[0] + float(x), centre[1] + float(y)


def _offsets(centre: tuple[float, float], edge: int) -> tuple[np.ndarray, np.ndarray]:
    """How far each pixel's middle lies right of and below a point: float32 [1, edge] and [edge, 1]."""
    middles = np.arange(edge, dtype=np.float32) + np.float32(0.5)
    return (middles - np.float32(centre[0]))[None, :], (middles - np.float32(centre[1]))[:, None]


def _soft_wave(position: np.ndarray, period: float) -> np.ndarray:
    """1 on one half of each period and 0 on the other, with edges one pixel wide; 1 at position 0."""
    away = abs(position - period * np.rint(position / period))
    return np.clip(0.5 + period / 4 - away, 0, 1)
