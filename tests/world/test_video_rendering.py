"""Clips as pixels: objects where and when they belong, and a background that shows what the camera does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vcap_jax.world.scenes import Shot, VideoObject, VideoScene
from vcap_jax.world.video_rendering import PAN, ZOOM, render_video
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS

THING = VideoObject(
    place="bottom left",
    shape="square",
    colour="red",
    size="large",
    motion="right",
    event=None,
    at=None,
    into=None,
    start=(20.0, 70.0),
    step=(2.0, 0.0),
    extent=26.0,
    tilt=0.0,
)


def clip(*objects: VideoObject, camera: str = "still", background: str = "gray", seed: int = 0) -> VideoScene:
    """Two shots, the first of four frames with these objects."""
    shots = (
        Shot(first=0, last=4, background=background, camera=camera, objects=objects),
        Shot(first=4, last=12, background="beige", camera="still", objects=()),
    )
    return VideoScene(shots=shots, render_seed=seed)


def painted(frame: np.ndarray, colour: str) -> tuple[np.ndarray, np.ndarray]:
    """x and y of the pixels near to a colour."""
    away = np.abs(frame.astype(int) - COLOURS[colour]).max(-1)
    y, x = np.nonzero(away < 30)
    return x + 0.5, y + 0.5


def test_a_clip_is_twelve_frames_and_its_scenes_own() -> None:
    scene = sample_video_scene(4, 2)
    frames = render_video(scene)
    assert (frames.shape, frames.dtype) == ((12, 96, 96, 3), np.uint8)
    assert np.array_equal(frames, render_video(scene))
    assert not np.array_equal(frames, render_video(replace(scene, render_seed=scene.render_seed + 1)))


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_backgrounds_keep_their_colours(background: str) -> None:
    frames = render_video(clip(background=background))
    assert np.abs(np.median(frames[:4], axis=(0, 1, 2)) - BACKGROUNDS[background]).max() < 16
    # The texture is to be seen, on dark backgrounds as well.
    assert frames[:4].astype(float).std(axis=(1, 2)).min() > 3


def test_an_object_is_where_the_scene_says_in_every_frame() -> None:
    frames = render_video(clip(THING))
    for moved, frame in enumerate(frames[:4]):
        x, y = painted(frame, "red")
        assert x.mean() == pytest.approx(20 + 2 * moved, abs=0.25)
        assert y.mean() == pytest.approx(70, abs=0.25)
        assert len(x) == pytest.approx((0.92 * 26) ** 2, rel=0.12)
    assert all(len(painted(frame, "red")[0]) == 0 for frame in frames[4:])


def test_events_show_from_their_frame_on() -> None:
    def seen(thing: VideoObject, colour: str) -> list[int]:
        return [
            k for k, frame in enumerate(render_video(clip(thing))[:4]) if len(painted(frame, colour)[0]) > 100
        ]

    assert seen(replace(THING, event="appears", at=2), "red") == [2, 3]
    assert seen(replace(THING, event="disappears", at=2), "red") == [0, 1]
    assert seen(replace(THING, event="changes", at=2, into="cyan"), "red") == [0, 1]
    assert seen(replace(THING, event="changes", at=2, into="cyan"), "cyan") == [2, 3]


@pytest.mark.parametrize("camera", ["still", "pans left", "pans right", "zooms in"])
def test_the_background_moves_against_the_camera(camera: str) -> None:
    x, y = np.meshgrid(np.arange(96.0), np.arange(96.0))
    where = {
        "still": (x, y),
        "pans right": (x + PAN, y),
        "pans left": (x - PAN, y),
        "zooms in": (47.5 + (x - 47.5) / ZOOM, 47.5 + (y - 47.5) / ZOOM),
    }
    errors = dict.fromkeys(where, 0.0)
    for seed in range(6):
        frames = render_video(clip(camera=camera, seed=seed)).astype(float).mean(-1)
        for name, (from_x, from_y) in where.items():
            inside = (from_x >= 0) & (from_x < 95.5) & (from_y >= 0) & (from_y < 95.5)
            columns, rows = np.rint(from_x[inside]).astype(int), np.rint(from_y[inside]).astype(int)
            # What a pixel shows in a frame, the one that it comes from showed in the frame before.
            errors[name] += float(np.square(frames[2][inside] - frames[1][rows, columns]).mean())
    told = errors.pop(camera)
    assert told < 0.5 * min(errors.values())


def test_the_camera_does_not_move_objects() -> None:
    still = [painted(frame, "red") for frame in render_video(clip(THING))[:4]]
    panned = [painted(frame, "red") for frame in render_video(clip(THING, camera="pans left"))[:4]]
    for (x, y), (other_x, other_y) in zip(still, panned, strict=True):
        assert x.mean() == pytest.approx(other_x.mean(), abs=0.1)
        assert y.mean() == pytest.approx(other_y.mean(), abs=0.1)
