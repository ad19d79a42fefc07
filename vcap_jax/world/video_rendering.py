"""Video scenes to pixels.

A shot's background is a function of the plane: a soft lattice over broad waves of brightness, which the camera moves
past or into. Objects stand in front of it as if before the lens: the camera does not move them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vcap_jax.world.drawing import shape_mask
from vcap_jax.world.scenes import VIDEO_EDGE, Shot, VideoObject, VideoScene
from vcap_jax.world.video_facts import seen_frames
from vcap_jax.world.video_scenes import QUARTER, quarter_origin
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, VIDEO_FRAMES

PAN = 5.0
"""Pixels that a panning camera moves the background by from frame to frame, give or take a tenth."""
ZOOM = 1.05
"""How much a zooming camera enlarges the background from frame to frame, give or take half a per cent."""
_LATTICE = (21.0, 26.0)
"""Distance between neighbouring lines: so far that nobody who sees them panned takes one for the next."""
_LINE = 1.9
"""Standard deviation of a line's profile in pixels."""
_LINE_CONTRAST = 0.15
_LINE_MEDIAN = 0.2
"""Of the lattice, about: with it taken away, a background's median is its colour."""
_WAVES = 4
_WAVELENGTHS = (34.0, 80.0)
_WAVE_CONTRAST = 0.018
_DARK = 80.0
"""Added to a background's brightness before it is textured, or dark ones would show nothing."""
_BRIGHT = 120.0
"""Mean of RGB above which a background's lines are darker than it; on others they are lighter."""
_SHADE = 0.07
"""By how much an object's side towards the light is brighter than its middle."""

Plane = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(x [1, n], y [n, 1]) -> brightness of the background there, relative to its colour's, float32 [n, n]."""


def render_video(scene: VideoScene) -> np.ndarray:
    """The frames of a clip, uint8 [12, 96, 96, 3]."""
    rng = np.random.default_rng(scene.render_seed)
    frames = np.empty((VIDEO_FRAMES, VIDEO_EDGE, VIDEO_EDGE, 3), np.uint8)
    for shot in scene.shots:
        base = np.array(BACKGROUNDS[shot.background], np.float32) + rng.uniform(-5, 5, 3).astype(np.float32)
        sign = -1 if base.mean() > _BRIGHT else 1
        plane, pan, zoom = _plane(sign, rng), PAN * rng.uniform(0.9, 1.1), ZOOM + rng.uniform(-0.005, 0.005)
        # Of each object, the same in all frames: a tint, and the angle in radians from which it is lit.
        paints = [(rng.uniform(-7, 7, 3), float(rng.uniform(0, 2 * np.pi))) for _ in shot.objects]
        grain = np.float32(rng.uniform(0.3, 2.0))
        for frame in range(shot.first, shot.last):
            x, y = _seen_from(shot.camera, frame - shot.first, pan, zoom)
            brightness = plane(x, y)[..., None]
            canvas = base + (base + _DARK) * brightness
            for thing, (tint, light) in zip(shot.objects, paints, strict=True):
                if frame in seen_frames(shot, thing):
                    _put(canvas, shot, thing, tint, light, frame)
            canvas += grain * rng.standard_normal((VIDEO_EDGE, VIDEO_EDGE, 1), np.float32)
            frames[frame] = np.clip(np.rint(canvas), 0, 255)
    return frames


def _plane(sign: int, rng: np.random.Generator) -> Plane:
    """A background's texture: a few waves and lines of a lattice, light ones (sign 1) or dark ones (-1)."""
    period = rng.uniform(*_LATTICE)
    phases = rng.uniform(0, period, 2)
    angles = rng.uniform(0, 2 * np.pi, _WAVES)
    lengths = rng.uniform(*_WAVELENGTHS, _WAVES)
    shifts = rng.uniform(0, 2 * np.pi, _WAVES)

    def line(position: np.ndarray, phase: float) -> np.ndarray:
        away = (position - phase + period / 2) % period - period / 2
        return np.exp(-0.5 * np.square(away / _LINE))

    def brightness(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        lattice = np.maximum(line(x, phases[0]), line(y, phases[1])) - _LINE_MEDIAN
        total = sign * _LINE_CONTRAST * lattice
        for angle, length, shift in zip(angles, lengths, shifts, strict=True):
            # sin(a + b), so that sines are needed of rows and columns alone.
            a = 2 * np.pi / length * np.cos(angle) * x + shift
            b = 2 * np.pi / length * np.sin(angle) * y
            total += _WAVE_CONTRAST * (np.sin(a) * np.cos(b) + np.cos(a) * np.sin(b))
        return total.astype(np.float32)

    return brightness


def _seen_from(camera: str, moves: int, pan: float, zoom: float) -> tuple[np.ndarray, np.ndarray]:
    """Where on the plane each pixel of a frame looks: x [1, 96], y [96, 1], ``moves`` frames after the shot's first."""
    middles = np.arange(VIDEO_EDGE) + 0.5
    x, y = middles[None, :], middles[:, None]
    if camera == "zooms in":
        closer, middle = zoom**-moves, VIDEO_EDGE / 2
        return middle + (x - middle) * closer, middle + (y - middle) * closer
    way = {"still": 0, "pans left": -1, "pans right": 1}[camera]
    return x + way * pan * moves, y


def _put(
    canvas: np.ndarray, shot: Shot, thing: VideoObject, tint: np.ndarray, light: float, frame: int
) -> None:
    """Paints an object into its quarter of a frame, float32 [96, 96, 3], in place."""
    moved = frame - shot.first
    left, top = quarter_origin(thing.place)
    x, y = (thing.start[0] + thing.step[0] * moved - left, thing.start[1] + thing.step[1] * moved - top)
    mask = shape_mask(thing.shape, (x, y), thing.extent, thing.tilt, QUARTER)[..., None]
    colour = np.array(COLOURS[thing.colour_at(frame)]) + tint
    pixels = np.arange(QUARTER) + 0.5
    towards = (pixels[None, :] - x) * np.cos(light) + (pixels[:, None] - y) * np.sin(light)
    shade = 1 + _SHADE * np.clip(towards / (thing.extent / 2), -1, 1)
    quarter = canvas[top : top + QUARTER, left : left + QUARTER]
    quarter += mask * ((shade[..., None] * colour).astype(np.float32) - quarter)
