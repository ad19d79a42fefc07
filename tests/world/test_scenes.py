"""Scenes and their files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from vcap_jax.world.dataset import read_scenes, write_dataset
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.rendering import render, render_image, render_video
from vcap_jax.world.scenes import (
    CUT_FRAMES,
    Modality,
    sample_image_scene,
    sample_scene,
    sample_video_scene,
    scene_from_json,
    scene_to_json,
)


@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_scene_depends_on_seed_split_and_index_only(modality: Modality) -> None:
    scene = sample_scene(modality, 3, 17, "train")
    assert sample_scene(modality, 3, 17, "train") == scene
    others = [
        sample_scene(modality, *key) for key in ((4, 17, "train"), (3, 18, "train"), (3, 17, "held-out"))
    ]
    assert all(other != scene for other in others)
    assert np.array_equal(render(scene), render(scene))


@pytest.mark.parametrize("modality", ["image", "video"])
def test_scenes_survive_json(modality: Modality) -> None:
    for index in range(20):
        scene = sample_scene(modality, 0, index)
        assert scene_from_json(json.loads(json.dumps(scene_to_json(scene)))) == scene


def test_image_scenes_have_two_to_four_objects_and_all_their_facts() -> None:
    counts = Counter()
    for index in range(200):
        scene = sample_image_scene(0, index)
        places = {item.place for item in scene.objects}
        assert len(places) == len(scene.objects)
        assert len(scene_facts(scene)) == 3 * len(places) + 1
        counts[len(places)] += 1
    assert set(counts) == {2, 3, 4}


def test_video_scenes_cut_on_even_frames_between_different_backgrounds() -> None:
    cuts = set()
    for index in range(60):
        scene = sample_video_scene(0, index)
        first, second = scene.shots
        assert (first.first, first.last, second.last) == (0, second.first, 8)
        assert first.background != second.background
        assert scene_facts(scene)["video", "cut"] == f"{second.first / 2:.1f}"
        cuts.add(second.first)
    assert cuts == set(CUT_FRAMES)


def test_nothing_but_still_objects_stays_in_place() -> None:
    for index in range(40):
        scene = sample_video_scene(1, index)
        frames = render_video(scene).astype(int)
        for shot in scene.shots:
            moves = any(item.motion != "still" for item in shot.objects)
            change = np.abs(frames[shot.last - 1] - frames[shot.first]).max()
            assert (change > 60) == moves


@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_data_set_looks_like_a_users_own_data(modality: Modality, tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "set", modality, "held-out", 4, 7, prompt="What is it?")
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    scenes = read_scenes(manifest.parent)
    assert [set(row) for row in rows] == [{"id", modality, "prompt"}] * 4
    assert list(scenes) == [row["id"] for row in rows]
    for index, row in enumerate(rows):
        path = manifest.parent / row[modality]
        scene = sample_scene(modality, 7, index, "held-out")
        assert scenes[row["id"]] == scene
        if modality == "image":
            assert np.array_equal(np.asarray(Image.open(path)), render(scene))
        else:
            with av.open(str(path)) as container:
                decoded = list(container.decode(video=0))
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in decoded])
            assert [float(frame.time) for frame in decoded] == [k / 2 for k in range(8)]
            assert np.abs(frames.astype(int) - render(scene)).mean() < 4
    assert "prompt" not in json.loads(write_dataset(tmp_path / "plain", modality, "train", 1, 0).read_text())


def test_an_image_is_96_pixels_square_and_its_places_are_where_they_are_said_to_be() -> None:
    scenes = (sample_image_scene(2, index) for index in range(500))
    scene = next(s for s in scenes if {o.place for o in s.objects} == {"top left", "bottom right"})
    picture = render_image(scene).astype(int)
    assert picture.shape == (96, 96, 3)
    contrast = np.abs(picture - np.median(picture, axis=(0, 1))).sum(-1) > 120
    rows, columns = np.nonzero(contrast)
    assert all((r < 32 and c < 32) or (r >= 64 and c >= 64) for r, c in zip(rows, columns, strict=True))
