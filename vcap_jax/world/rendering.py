"""Scenes to pixels.

Shapes are drawn at ``SUPERSAMPLING`` times the resolution and averaged down, so that edges are smooth.
Everything the facts leave open (position inside the cell, exact size, tilt, tint, light, texture) is drawn
from the scene's ``render_seed``.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw

from vcap_jax.world.scenes import (
    BACKGROUNDS,
    CELL,
    COLOURS,
    IMAGE_GRID,
    IMAGE_PLACES,
    VIDEO_FRAMES,
    VIDEO_GRID,
    VIDEO_PLACES,
    ImageScene,
    Scene,
    VideoScene,
)

SUPERSAMPLING = 4
EXTENTS = {"small": (12.0, 14.0), "large": (22.0, 25.0)}
"""Edge of the box around an object in pixels, by size."""
VIDEO_EXTENT = (13.0, 15.0)
MARGIN = 2.0
"""Pixels between an object and the border of its cell, at least."""
STEP = 5.0
"""Pixels a moving object advances per frame, unless its cell is too small for the length of the shot."""
TRAVEL = 13.0
"""Pixels a moving object covers in a shot, at most."""
_TILT = math.radians(7)


def shape_outline(shape: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Outer polygon and hole (may be empty) of a shape in a box from -0.5 to 0.5, y downwards."""
    turn = 2 * math.pi
    match shape:
        case "circle":
            return [(0.5 * math.cos(turn * i / 48), 0.5 * math.sin(turn * i / 48)) for i in range(48)], []
        case "ring":
            points = [(math.cos(turn * i / 48), math.sin(turn * i / 48)) for i in range(48)]
            return [(0.5 * x, 0.5 * y) for x, y in points], [(0.27 * x, 0.27 * y) for x, y in points]
        case "square":
            return [(-0.45, -0.45), (0.45, -0.45), (0.45, 0.45), (-0.45, 0.45)], []
        case "triangle":
            return [(0.0, -0.47), (0.5, 0.43), (-0.5, 0.43)], []
        case "star":
            radii = [0.53 if i % 2 == 0 else 0.235 for i in range(10)]
            angles = [turn * i / 10 - turn / 4 for i in range(10)]
            return [(r * math.cos(a), r * math.sin(a) + 0.03) for r, a in zip(radii, angles, strict=True)], []
        case "cross":
            a, b = 0.49, 0.16
            return [
                (-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b),
                (b, a), (-b, a), (-b, b), (-a, b), (-a, -b), (-b, -b),
            ], []  # fmt: skip
    raise ValueError(f"unknown shape {shape!r}; known: circle, square, triangle, star, cross, ring")


def shape_mask(shape: str, centre: tuple[float, float], extent: float, tilt: float, edge: int) -> np.ndarray:
    """Coverage of each pixel by the shape, float32 [edge, edge] in 0..1; ``centre`` is (x, y) in pixels."""
    canvas = Image.new("L", (edge * SUPERSAMPLING, edge * SUPERSAMPLING))
    draw = ImageDraw.Draw(canvas)
    cos, sin = math.cos(tilt), math.sin(tilt)
    for polygon, value in zip(shape_outline(shape), (255, 0), strict=True):
        if polygon:
            draw.polygon(
                [
                    (
                        (centre[0] + extent * (x * cos - y * sin)) * SUPERSAMPLING,
                        (centre[1] + extent * (x * sin + y * cos)) * SUPERSAMPLING,
                    )
                    for x, y in polygon
                ],
                fill=value,
            )
    return np.asarray(canvas.reduce(SUPERSAMPLING), np.float32) / 255


def _background(name: str, edge: int, rng: np.random.Generator) -> np.ndarray:
    """A softly lit, lightly textured background, float32 [edge, edge, 3]."""
    rows, columns = np.mgrid[0:edge, 0:edge].astype(np.float32) / edge - 0.5
    angle = rng.uniform(0, 2 * math.pi)
    along = rows * math.sin(angle) + columns * math.cos(angle)
    light = rng.uniform(0, 0.16) * along
    match int(rng.integers(4)):
        case 0:  # plain
            texture = np.zeros_like(rows)
        case 1:  # soft stripes
            across = rows * math.cos(angle) - columns * math.sin(angle)
            texture = 0.03 * np.sin(across * rng.uniform(25, 60))
        case 2:  # vignette
            texture = 0.05 - 0.3 * (rows**2 + columns**2) * rng.uniform(0.4, 0.8)
        case _:  # clouds: coarse noise, smoothly enlarged
            coarse = Image.fromarray(rng.normal(0, 1, (7, 7)).astype(np.float32))
            texture = 0.025 * np.asarray(coarse.resize((edge, edge), Image.Resampling.BICUBIC))
    base = np.asarray(BACKGROUNDS[name], np.float32) + rng.uniform(-5, 5, 3).astype(np.float32)
    shade = (light + texture)[..., None]
    # Dark colours need an additive part, or their light would be invisible.
    return base * (1 + shade) + 40 * shade


def _tint(colour: str, edge: int, centre: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """The paint of one object over its cell, lit from above left, float32 [edge, edge, 3]."""
    base = np.asarray(COLOURS[colour], np.float32) + rng.uniform(-7, 7, 3).astype(np.float32)
    rows, columns = np.mgrid[0:edge, 0:edge].astype(np.float32)
    away = ((rows - centre[1]) + (columns - centre[0])) / CELL
    return base * (1 - rng.uniform(0.05, 0.2) * away)[..., None]


def _origin(place: str, places: tuple[str, ...], grid: int) -> tuple[int, int]:
    """Top and left pixel of a cell."""
    row, column = divmod(places.index(place), grid)
    return row * CELL, column * CELL


def _finish(canvas: np.ndarray, grain: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(canvas + grain), 0, 255).astype(np.uint8)


def _grain(edge: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(0, rng.uniform(0.3, 2.2), (edge, edge, 1)).astype(np.float32)


def _paint(canvas: np.ndarray, top: int, left: int, mask: np.ndarray, tint: np.ndarray) -> None:
    cell = canvas[top : top + CELL, left : left + CELL]
    cell += mask[..., None] * (tint - cell)


def render_image(scene: ImageScene) -> np.ndarray:
    """The picture of a scene, uint8 [96, 96, 3]."""
    rng = np.random.default_rng(scene.render_seed)
    edge = IMAGE_GRID * CELL
    canvas = _background(scene.background, edge, rng)
    for item in scene.objects:
        extent = rng.uniform(*EXTENTS[item.size])
        room = min((CELL - extent) / 2 - MARGIN, 6.0)
        centre = (CELL / 2 + rng.uniform(-room, room), CELL / 2 + rng.uniform(-room, room))
        mask = shape_mask(item.shape, centre, extent, rng.uniform(-_TILT, _TILT), CELL)
        top, left = _origin(item.place, IMAGE_PLACES, IMAGE_GRID)
        _paint(canvas, top, left, mask, _tint(item.colour, CELL, centre, rng))
    return _finish(canvas, _grain(edge, rng))


_DIRECTIONS = {"still": (0, 0), "left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def render_video(scene: VideoScene) -> np.ndarray:
    """The frames of a scene, uint8 [8, 64, 64, 3]."""
    rng = np.random.default_rng(scene.render_seed)
    edge = VIDEO_GRID * CELL
    frames = np.empty((VIDEO_FRAMES, edge, edge, 3), np.uint8)
    for shot in scene.shots:
        background = _background(shot.background, edge, rng)
        grain = _grain(edge, rng)
        moves = shot.last - shot.first - 1
        shown = [background.copy() for _ in range(moves + 1)]
        for item in shot.objects:
            extent = rng.uniform(*VIDEO_EXTENT)
            room = (CELL - extent) / 2 - MARGIN
            step = min(STEP, TRAVEL / moves) * rng.uniform(0.9, 1.0)
            direction = np.asarray(_DIRECTIONS[item.motion], float)
            # The middle of the way is free where the object does not need the room to move.
            slack = np.maximum(room - abs(direction) * step * moves / 2, 0)
            middle = CELL / 2 + rng.uniform(-1, 1, 2) * slack
            tilt = rng.uniform(-_TILT, _TILT)
            paint_rng_state = rng.bit_generator.state
            top, left = _origin(item.place, VIDEO_PLACES, VIDEO_GRID)
            for k, canvas in enumerate(shown):
                rng.bit_generator.state = paint_rng_state  # the same paint in every frame
                x, y = middle + direction * step * (k - moves / 2)
                mask = shape_mask(item.shape, (x, y), extent, tilt, CELL)
                _paint(canvas, top, left, mask, _tint(item.colour, CELL, (x, y), rng))
        for k, canvas in enumerate(shown):
            frames[shot.first + k] = _finish(canvas, grain)
    return frames


def render(scene: Scene) -> np.ndarray:
    """``render_image`` or ``render_video``."""
    return render_image(scene) if isinstance(scene, ImageScene) else render_video(scene)
