"""Facts out of clips."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from vcap_jax.world.dataset import write_mp4
from vcap_jax.world.scenes import Shot, VideoObject, VideoScene
from vcap_jax.world.video_facts import video_facts
from vcap_jax.world.video_perception import see_camera, see_video
from vcap_jax.world.video_rendering import render_video
from vcap_jax.world.video_scenes import STEPS, sample_video_scene
from vcap_jax.world.vocabulary import CUTS, SHOTS, VIDEO_FRAMES, VIDEO_PLACES

TIMES = [k / 2 for k in range(VIDEO_FRAMES)]
THING = VideoObject(
    place="top left",
    shape="triangle",
    colour="orange",
    size="large",
    motion="down",
    event=None,
    at=None,
    into=None,
    start=(24.0, 18.0),
    step=(0.0, 2.0),
    extent=26.0,
    tilt=0.0,
)
OTHER = replace(
    THING, place="bottom right", shape="star", motion="still", step=(0.0, 0.0), start=(72.0, 72.0)
)
CLIP = VideoScene(
    shots=(
        Shot(
            first=0,
            last=8,
            background="white",
            camera="pans left",
            objects=(
                replace(THING, event="changes", at=6, into="blue"),
                replace(OTHER, event="appears", at=2),
            ),
        ),
        Shot(first=8, last=12, background="navy", camera="zooms in", objects=(OTHER,)),
    ),
    render_seed=5,
)
HAPPENINGS = ("event", "time", "into")


def through_h264(frames: np.ndarray, path: Path) -> list[np.ndarray]:
    write_mp4(path, frames)
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def jpeg(picture: np.ndarray, quality: int) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream).convert("RGB"))


@pytest.mark.parametrize("scenes", [range(5), pytest.param(range(5, 30), marks=pytest.mark.slow)], ids=str)
def test_clips_are_read_exactly_after_h264(tmp_path: Path, scenes: range) -> None:
    for index in scenes:
        scene = sample_video_scene(23, index)
        frames = through_h264(render_video(scene), tmp_path / "clip.mp4")
        facts, spans = video_facts(scene), tuple(shot.seconds for shot in scene.shots)
        for seen in (frames, [jpeg(frame, 90) for frame in frames]):
            sight = see_video(seen, TIMES)
            assert sight.facts == facts, index
            assert not sight.unknown
            assert sight.shots == spans


def test_enlarged_clips_are_read_too() -> None:
    scene = sample_video_scene(24, 0)
    large = [
        np.asarray(Image.fromarray(frame).resize((240, 192), Image.Resampling.BICUBIC))
        for frame in render_video(scene)
    ]
    assert see_video(large, TIMES).facts == video_facts(scene)


def test_the_window_of_a_shot_shows_what_it_shows() -> None:
    facts, frames = video_facts(CLIP), render_video(CLIP)
    # The last shot: its cut lies before it, and what happens may have happened before.
    sight = see_video(frames[8:], TIMES[8:])
    assert sight.shots == ((4.0, 6.0),)
    assert sight.facts == {(0, *slot[1:]): value for slot, value in facts.items() if slot[0] == 1}
    happenings = {(0, "bottom right", kind) for kind in HAPPENINGS}
    assert sight.unknown == {SHOTS, *CUTS, (0, "scene", "first"), *happenings}
    assert sight.verdict((0, "bottom right", "time"), "3.0") is None
    assert sight.verdict((0, "bottom right", "shape"), "circle") is False
    assert sight.verdict((0, "top left", "shape"), "circle") is False


def test_a_window_inside_a_shot_leaves_open_what_lies_beyond_it() -> None:
    facts, frames = video_facts(CLIP), render_video(CLIP)
    sight = see_video(frames[:4], TIMES[:4])
    # The second object is seen to appear; whether the first will change is open.
    shown = {slot: value for slot, value in facts.items() if slot[0] == 0}
    unseen: set[tuple[str | int, ...]] = {(0, "top left", kind) for kind in HAPPENINGS}
    unseen.add((0, "scene", "first"))
    assert sight.facts == {slot: value for slot, value in shown.items() if slot not in unseen}
    assert sight.unknown == {SHOTS, *CUTS, *unseen}
    # From the beginning past the cut: which cut it is, is known; whether others follow is not.
    longer = see_video(frames[:10], TIMES[:10])
    assert longer.facts["video", "cut 1"] == "4.0"
    assert {SHOTS, CUTS[1]} <= longer.unknown
    assert all(longer.facts[slot] == value for slot, value in shown.items())


def test_a_single_frame_shows_nothing_that_moves() -> None:
    sight = see_video(render_video(CLIP)[9:10], TIMES[9:10])
    assert sight.facts == {
        (0, "scene", "background"): "navy",
        (0, "bottom right", "shape"): "star",
        (0, "bottom right", "colour"): "orange",
        (0, "bottom right", "size"): "large",
    }
    assert {
        (0, "bottom right", "motion"),
        (0, "scene", "camera"),
        (0, "bottom right", "event"),
    } <= sight.unknown


def test_two_frames_show_that_the_slowest_things_move() -> None:
    slow, place = replace(THING, start=(24.0, 16.0), step=(0.0, STEPS[0])), (0, "top left", "motion")
    for seed in range(4):
        shot = Shot(first=0, last=12, background="white", camera="still", objects=(slow,))
        frames = [jpeg(frame, 90) for frame in render_video(VideoScene(shots=(shot,), render_seed=seed))]
        for k in range(8):
            assert see_video(frames[k : k + 2], TIMES[k : k + 2]).facts[place] == "down", (seed, k)


def test_every_second_frame_is_enough() -> None:
    for index in range(20):
        scene = sample_video_scene(25, index)
        sight = see_video(render_video(scene)[::2], TIMES[::2])
        told = {s: v for s, v in video_facts(scene).items() if s not in sight.unknown}
        assert sight.facts == told, index
        # Who is seen in one of these frames alone is not seen to move.
        assert {slot[-1] for slot in sight.unknown} <= {"motion"}


def test_what_happens_between_two_frames_happens_when_it_can() -> None:
    # Eight frames of twelve lie so that most cuts and events fall between two of them.
    taken = [0, 2, 3, 5, 6, 8, 9, 11]
    for index in range(10):
        scene = sample_video_scene(26, index)
        sight = see_video(render_video(scene)[taken], [TIMES[k] for k in taken])
        told = {s: v for s, v in video_facts(scene).items() if s not in sight.unknown}
        assert sight.facts == told, index
        assert sight.shots[:-1] == tuple(shot.seconds for shot in scene.shots[:-1])


def test_what_is_larger_is_more_prominent() -> None:
    small = replace(OTHER, extent=15.0, size="small", place="top right", start=(72.0, 24.0))
    shots = (replace(CLIP.shots[0], objects=(THING, OTHER, small)), CLIP.shots[1])
    prominence = see_video(render_video(replace(CLIP, shots=shots)), TIMES).prominence
    assert set(prominence) == {(0, "top left"), (0, "bottom right"), (0, "top right"), (1, "bottom right")}
    assert prominence[0, "top right"] < 0.5 * prominence[0, "bottom right"] < prominence[0, "top left"]


def test_a_background_without_texture_does_not_tell_the_camera() -> None:
    frames = np.full((12, 96, 96, 3), (134, 136, 138), np.uint8)
    sight = see_video(frames, TIMES)
    assert sight.facts == {(0, "scene", "background"): "gray"}
    assert sight.unknown == {(0, "scene", "camera")}
    assert sight.verdict(SHOTS, "two") is False


@pytest.mark.parametrize("shape", [(1, 1), (5, 400), (96, 96), (353, 719)])
def test_any_frames_are_read_without_complaint(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (*shape, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)).resize(shape[::-1]))
    for picture in (noise, smooth, np.zeros_like(noise), np.full_like(noise, 255)):
        sight = see_video([picture, picture[::-1], picture], [0.0, 0.1, 7.0])
        assert (0, "scene", "background") in sight.facts
        assert not sight.facts.keys() & sight.unknown
        assert all(slot[1] in (*VIDEO_PLACES, "scene") for slot in sight.facts if slot[0] != "video")


def test_what_is_no_clip_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        see_video([np.zeros((8, 8, 3))], [0.0])
    with pytest.raises(ValueError, match=r"\[8, 8\]"):
        see_video([np.zeros((8, 8), np.uint8)], [0.0])
    with pytest.raises(ValueError, match="0 frames"):
        see_video([], [])
    with pytest.raises(ValueError, match="1 frames and 2 times"):
        see_video([np.zeros((8, 8, 3), np.uint8)], [0.0, 1.0])


EDGE = 96
NOTHING = np.zeros((4, EDGE, EDGE), bool)
MOMENTS = [0.0, 0.5, 1.0, 1.5]


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
    assert see_camera(panned(step), NOTHING, MOMENTS) == camera


def test_what_moves_before_the_background_is_left_aside() -> None:
    frames, objects = panned(5), NOTHING.copy()
    # Most of the picture is an object that stands still on the screen.
    objects[:, 8:88, 20:90] = True
    frames[objects] = 240
    assert see_camera(frames, NOTHING, MOMENTS) == "still"
    assert see_camera(frames, objects, MOMENTS) == "pans right"


def test_the_way_between_two_frames_depends_on_their_times() -> None:
    frames = panned(5)[::2]
    assert see_camera(frames, NOTHING[::2], MOMENTS[::2]) == "pans right"
    assert see_camera(panned(5)[:2], NOTHING[:2], [0.0, 4.0]) is None  # too long ago to foretell anything


def test_what_decides_nothing_is_told_so() -> None:
    assert see_camera(panned(5)[:1], NOTHING[:1], MOMENTS[:1]) is None
    assert see_camera(panned(5), ~NOTHING, MOMENTS) is None
    assert see_camera(np.full((4, EDGE, EDGE), 50, np.float32), NOTHING, MOMENTS) is None
    noise = np.random.default_rng(0).normal(0, 2, (4, EDGE, EDGE)).astype(np.float32)
    assert see_camera(noise, NOTHING, MOMENTS) is None
