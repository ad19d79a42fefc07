"""Image scenes to pixels: a lit, softly textured background, the objects from back to front, and grain.

What facts and geometry leave open (tints, texture, grain) is drawn from the scene's ``render_seed``.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from vcap_jax.world.drawing import (
    DOT,
    disc_mask,
    glyph_centre,
    glyph_mask,
    ink,
    pattern_mask,
    second_tone,
    shape_mask,
)
from vcap_jax.world.scenes import IMAGE_EDGE, ImageObject, ImageScene
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS

LIGHT = 0.14
"""How much brighter a background is at the side that the light comes from than in the middle, relatively."""
LIFT = 40.0
"""Added to a colour before the light scales it: or before dark backgrounds no light would be seen."""
OBJECT_LIGHT = 0.6
"""How much of the background's light an object shows."""
_TINT = 6.0
_TEXTURE = 0.02
_GRAIN = (0.3, 2.0)


def render_image(scene: ImageScene) -> np.ndarray:
    """The picture of a scene, uint8 [128, 128, 3]."""
    rng = np.random.default_rng(scene.render_seed)
    light = LIGHT * light_field(scene.light)
    canvas = _background(scene.background, light, rng)
    for item in scene.objects:
        _draw(canvas, item, scene.background, light, rng)
    canvas += rng.normal(0, rng.uniform(*_GRAIN), (IMAGE_EDGE, IMAGE_EDGE, 1)).astype(np.float32)
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


def light_field(side: str) -> np.ndarray:
    """From 1 at the side that the light comes from to -1 at the other, float32 [128, 128]."""
    ramp = np.linspace(1, -1, IMAGE_EDGE, dtype=np.float32)
    across = np.broadcast_to(ramp, (IMAGE_EDGE, IMAGE_EDGE))
    return {"left": across, "right": -across, "above": across.T, "below": -across.T}[side]


def _background(name: str, light: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """float32 [128, 128, 3]."""
    shade = (light + _texture(rng))[..., None]
    base = np.asarray(BACKGROUNDS[name], np.float32) + rng.uniform(-4, 4, 3).astype(np.float32)
    return (base + (base + LIFT) * shade).astype(np.float32)


def _texture(rng: np.random.Generator) -> np.ndarray:
    """Relative brightness of a soft texture, float32 [128, 128]: none, waves or clouds."""
    kind, strength = int(rng.integers(3)), rng.uniform(0.3, 1) * _TEXTURE
    angle, waves = rng.uniform(0, math.pi), rng.uniform(3, 9)
    coarse = rng.normal(0, 1, (7, 7)).astype(np.float32)
    if kind == 0:
        return np.zeros((IMAGE_EDGE, IMAGE_EDGE), np.float32)
    if kind == 1:
        along = np.arange(IMAGE_EDGE, dtype=np.float32) * np.float32(2 * math.pi * waves / IMAGE_EDGE)
        phase = math.cos(angle) * along[None, :] + math.sin(angle) * along[:, None]
        return np.asarray(strength * np.sin(phase), np.float32)
    clouds = Image.fromarray(coarse).resize((IMAGE_EDGE, IMAGE_EDGE), Image.Resampling.BICUBIC)
    return np.float32(strength) * np.clip(np.asarray(clouds), -1.5, 1.5)


def _draw(
    canvas: np.ndarray, item: ImageObject, background: str, light: np.ndarray, rng: np.random.Generator
) -> None:
    """Draws one object, with all that it bears, in front of what is on the canvas."""
    tint = rng.uniform(-_TINT, _TINT, 3).astype(np.float32)
    lit = (1 + OBJECT_LIGHT * light)[..., None]
    paint = np.broadcast_to(np.asarray(COLOURS[item.colour], np.float32) + tint, canvas.shape)
    if item.pattern is not None:
        tone = second_tone(item.colour, BACKGROUNDS[background])[0]
        shown = pattern_mask(item.pattern, item.centre, item.tilt, IMAGE_EDGE)[..., None]
        paint = paint + shown * (tone - paint)
    if item.mark is not None:
        centre = glyph_centre(item.shape, item.centre, item.extent, item.tilt, item.direction)
        shown = glyph_mask(item.mark, centre, IMAGE_EDGE)[..., None]
        paint = paint + shown * (ink(item.colour) - paint)
    mask = shape_mask(item.shape, item.centre, item.extent, item.tilt, IMAGE_EDGE, item.direction)
    _lay(canvas, mask, lit * paint)
    if item.inside is not None:
        dot = np.asarray(COLOURS[item.inside], np.float32) + tint
        _lay(canvas, disc_mask(item.centre, DOT * item.extent, IMAGE_EDGE), lit * dot)


def _lay(canvas: np.ndarray, mask: np.ndarray, paint: np.ndarray) -> None:
    canvas += mask[..., None] * (paint - canvas)
