"""What the camera does, told by the background alone: each answer foretells the next frame, and the best one wins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.ndimage import maximum_filter

from vcap_jax.world.scenes import VIDEO_EDGE
from vcap_jax.world.video_rendering import PAN, ZOOM
from vcap_jax.world.vocabulary import CAMERAS, VIDEO_FPS

_MOST_STEPS = 3
"""Frames of the clip between two that are compared, at most: a longer pan would take one line of a lattice for the
next."""
_SEAM = 5
"""Pixels of the neighbourhood of an object that are not looked at: its edges do not move with the background."""
_CLEAR = 0.8
"""Error of the best answer, relative to the second best's, at which it is taken for true."""


def see_camera(brightness: np.ndarray, objects: np.ndarray, times: Sequence[float]) -> str | None:
    """What the camera does in the frames of a shot.

    Args:
        brightness: of the pixels, float32 [T, 96, 96].
        objects: bool [T, 96, 96], true where something stands in front of the background.
        times: seconds of the frames.

    Returns:
        None where that cannot be told: a single frame, frames too far from each other, a background without texture.
    """
    errors = np.zeros(len(CAMERAS))
    free = ~maximum_filter(objects, (1, _SEAM, _SEAM))
    for k in range(len(brightness) - 1):
        steps = max(round((times[k + 1] - times[k]) * VIDEO_FPS), 1)
        if steps > _MOST_STEPS:
            continue
        errors += [
            _foretold(brightness[k], free[k], brightness[k + 1], free[k + 1], camera, steps)
            for camera in CAMERAS
        ]
    best, second = np.argsort(errors)[:2]
    return CAMERAS[best] if errors[best] < _CLEAR * errors[second] else None


def _foretold(
    before: np.ndarray,
    free_before: np.ndarray,
    after: np.ndarray,
    free_after: np.ndarray,
    camera: str,
    steps: int,
) -> float:
    """Mean square error with which one frame foretells another, where both show the background."""
    source, inside = _sources(camera, steps)
    usable = inside & free_after.ravel() & free_before.ravel()[source]
    if not usable.any():
        return np.inf
    error = (after.ravel() - before.ravel()[source])[usable]
    return float(np.square(error).mean())


@cache
def _sources(camera: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """For each pixel of a frame, flat, the nearest pixel of the frame ``steps`` before in which the camera saw the same
    point of the background, and whether that lies in the picture."""
    middles = np.arange(VIDEO_EDGE) + 0.5
    x, y = np.meshgrid(middles, middles)
    if camera == "zooms in":
        x, y = (VIDEO_EDGE / 2 + (axis - VIDEO_EDGE / 2) / ZOOM**steps for axis in (x, y))
    else:
        x = x + {"still": 0.0, "pans left": -PAN, "pans right": PAN}[camera] * steps
    columns, rows = np.floor(x).astype(int).ravel(), np.floor(y).astype(int).ravel()
    inside = (columns >= 0) & (columns < VIDEO_EDGE)
    return rows * VIDEO_EDGE + np.clip(columns, 0, VIDEO_EDGE - 1), inside
