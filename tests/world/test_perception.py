"""Facts out of pixels."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from vcap_jax.world.dataset import write_mp4
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.perception import see_image, see_video
from vcap_jax.world.rendering import render_image, render_video
from vcap_jax.world.scenes import sample_image_scene, sample_video_scene

TIMES = [k / 2 for k in range(8)]


def jpeg(picture: np.ndarray, quality: int) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream).convert("RGB"))


@pytest.mark.parametrize("quality", [None, 95, 85])
def test_images_are_read_exactly(quality: int | None) -> None:
    for index in range(250):
        scene = sample_image_scene(21, index)
        picture = render_image(scene)
        sight = see_image(picture if quality is None else jpeg(picture, quality))
        assert sight.facts == scene_facts(scene), index
        assert not sight.unknown


def test_an_enlarged_image_is_read_too() -> None:
    for index in range(40):
        scene = sample_image_scene(22, index)
        large = Image.fromarray(render_image(scene)).resize((288, 240), Image.Resampling.BICUBIC)
        assert see_image(np.asarray(large)).facts == scene_facts(scene)


def test_clips_are_read_exactly_after_h264(tmp_path: Path) -> None:
    for index in range(60):
        scene = sample_video_scene(23, index)
        path = tmp_path / "clip.mp4"
        write_mp4(path, render_video(scene))
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        sight = see_video(frames, TIMES)
        assert sight.facts == scene_facts(scene), index
        assert sight.shots == tuple(shot.seconds for shot in scene.shots)
        assert see_video([jpeg(frame, 90) for frame in frames], TIMES).facts == scene_facts(scene), index


def test_what_a_window_does_not_show_is_unknown_or_empty() -> None:
    scene = next(s for i in range(50) if (s := sample_video_scene(24, i)).cut == 2.0)
    frames = render_video(scene)
    facts = scene_facts(scene)
    sight = see_video(frames[:4], TIMES[:4])
    assert sight.shots == ((0.0, 2.0),)
    assert sight.facts == {slot: value for slot, value in facts.items() if slot[0] == 0}
    single = see_video(frames[5:6], TIMES[5:6])
    assert single.unknown == {(0, item.place, "motion") for item in scene.shots[1].objects}
    place = scene.shots[1].objects[0].place
    assert single.verdict((0, place, "motion"), "left") is None
    assert single.verdict((0, place, "colour"), scene.shots[1].objects[0].colour) is True
    empty = next(
        p for p in ("top left", "top right", "bottom left", "bottom right") if (1, p, "shape") not in facts
    )
    assert single.verdict((0, empty, "colour"), "red") is False


@pytest.mark.parametrize("shape", [(1, 1), (5, 400), (96, 96), (64, 64), (719, 353)])
def test_any_picture_is_read_without_complaint(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (*shape, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)).resize(shape[::-1]))
    for picture in (noise, smooth, np.zeros_like(noise), np.full_like(noise, 255)):
        assert see_image(picture).facts["scene", "background"]
        see_video([picture, picture[::-1], picture], [0.0, 0.1, 7.0])


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        see_image(np.zeros((8, 8, 3)))
    with pytest.raises(ValueError, match=r"\[8, 8\]"):
        see_image(np.zeros((8, 8), np.uint8))
    with pytest.raises(ValueError, match="0 frames"):
        see_video([], [])
    with pytest.raises(ValueError, match="1 frames and 2 times"):
        see_video([np.zeros((8, 8, 3), np.uint8)], [0.0, 1.0])
