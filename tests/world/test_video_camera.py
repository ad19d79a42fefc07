"""What the camera does, told by backgrounds that move by a known way."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from vcap_jax.world.video_camera import see_camera

EDGE = 96
NOTHING = np.zeros((4, EDGE, EDGE), bool)
TIMES = [0.0, 0.5, 1.0, 1.5]


def wall() -> np.ndarray:
    """A soft random texture with room to pan in, [96, 192]."""
    texture = gaussian_filter(np.random.default_rng(1).normal(0, 1, (EDGE, 2 * EDGE)), 3)
    return (100 + 12 * texture / texture.std()).astype(np.float32)


def panned(step: int, start: int = 48) -> np.ndarray:
    """Four frames that look at the wall from ``step`` pixels further right each."""
    return np.stack([wall()[:, start + step * k : start + step * k + EDGE] for k in range(4)])


@pytest.mark.parametrize(
    ("step", "camera"), [(0, "still"), (5, "pans right"), (-5, "pans left"), (4, "pans right")]
)
def test_pans_are_told_whatever_the_texture(step: int, camera: str) -> None:
    assert see_camera(panned(step), NOTHING, TIMES) == camera


def test_what_moves_before_the_background_is_left_aside() -> None:
    frames, objects = panned(5), NOTHING.copy()
    # Most of the picture is an object that stands still on the screen.
    objects[:, 8:88, 20:90] = True
    frames[objects] = 240
    assert see_camera(frames, NOTHING, TIMES) == "still"
    assert see_camera(frames, objects, TIMES) == "pans right"


def test_the_way_between_two_frames_depends_on_their_times() -> None:
    frames = panned(5)[::2]
    assert see_camera(frames, NOTHING[::2], TIMES[::2]) == "pans right"
    assert see_camera(panned(5)[:2], NOTHING[:2], [0.0, 4.0]) is None  # too long ago to foretell anything


def test_what_decides_nothing_is_told_so() -> None:
    assert see_camera(panned(5)[:1], NOTHING[:1], TIMES[:1]) is None
    assert see_camera(panned(5), ~NOTHING, TIMES) is None
    assert see_camera(np.full((4, EDGE, EDGE), 50, np.float32), NOTHING, TIMES) is None
    noise = np.random.default_rng(0).normal(0, 2, (4, EDGE, EDGE)).astype(np.float32)
    assert see_camera(noise, NOTHING, TIMES) is None
