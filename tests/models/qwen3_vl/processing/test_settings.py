from __future__ import annotations

import json
from pathlib import Path

import pytest

from vcap_jax.models.errors import CheckpointError
from vcap_jax.models.qwen3_vl.processing.settings import (
    ImageSettings,
    VideoSettings,
    load_image_settings,
    load_video_settings,
    save_settings,
)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    image = ImageSettings(
        min_pixels=1_000, max_pixels=9_999, patch_size=14, mean=(0.1, 0.2, 0.3), rescale_factor=1 / 128
    )
    video = VideoSettings(fps=1.5, max_frames=33, patch_size=14).with_budget(
        max_frames=20, max_frame_tokens=5
    )
    save_settings(tmp_path, image, video)
    assert load_image_settings(tmp_path) == image
    assert load_video_settings(tmp_path) == video


def test_a_folder_without_preprocessor_files_means_the_published_values(tmp_path: Path) -> None:
    assert load_image_settings(tmp_path) == ImageSettings()
    assert load_video_settings(tmp_path) == VideoSettings()


def test_a_nested_processor_file_comes_first(tmp_path: Path) -> None:
    save_settings(tmp_path, ImageSettings(), VideoSettings())
    section = {
        "size": {"shortest_edge": 5, "longest_edge": 50},
        "image_mean": [0, 0, 0],
        "image_std": [1, 1, 1],
    }
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": section}))
    image = load_image_settings(tmp_path)
    assert (image.min_pixels, image.max_pixels, image.mean) == (5, 50, (0, 0, 0))
    assert image.patch_size == 14  # what the public class assumes where the file is silent
    assert load_video_settings(tmp_path) == VideoSettings()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"resample": 2}, "bicubic"),
        ({"size": {"height": 3, "width": 3}}, "longest_edge"),
    ],
)
def test_a_file_that_asks_for_something_else_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    save_settings(tmp_path, ImageSettings(), VideoSettings())
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        load_image_settings(tmp_path)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("preprocessor_config.json", {"patch_size": 16.5}),
        ("preprocessor_config.json", {"rescale_factor": "a"}),
        ("preprocessor_config.json", {"rescale_factor": float("inf")}),
        ("preprocessor_config.json", {"image_mean": ["a", "b", "c"]}),
        ("preprocessor_config.json", {"image_std": [0.5, 0.5, float("nan")]}),
        ("preprocessor_config.json", {"size": {"shortest_edge": 1, "longest_edge": float("inf")}}),
        ("video_preprocessor_config.json", {"fps": float("inf")}),
        ("video_preprocessor_config.json", {"max_frames": 4.5}),
    ],
)
def test_a_value_that_is_no_such_number_is_refused_by_name(tmp_path: Path, file: str, change: dict) -> None:
    save_settings(tmp_path, ImageSettings(), VideoSettings())
    path = tmp_path / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    name = {"size": "max_pixels"}.get(key := next(iter(change)), key.removeprefix("image_"))
    load = load_video_settings if file.startswith("video") else load_image_settings
    with pytest.raises(CheckpointError, match=rf"{file}: .*{name}.*; restore it from the checkpoint"):
        load(tmp_path)


def test_a_whole_number_may_be_written_as_any(tmp_path: Path) -> None:
    save_settings(tmp_path, ImageSettings(), VideoSettings())
    for file, change in (
        ("preprocessor_config.json", {"patch_size": 16.0}),
        ("video_preprocessor_config.json", {"max_frames": 768.0, "fps": 2}),
    ):
        path = tmp_path / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert isinstance(load_image_settings(tmp_path).patch_size, int)
    assert isinstance(load_video_settings(tmp_path).max_frames, int)
    assert load_video_settings(tmp_path) == VideoSettings()


def test_the_older_bounds_are_those_of_pictures_alone(tmp_path: Path) -> None:
    """As in the public classes: that of videos does not know them."""
    older = {"size": {"shortest_edge": 4096, "longest_edge": 8192}, "min_pixels": 5000, "max_pixels": 6000}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (tmp_path / name).write_text(json.dumps(older))
    image, video = load_image_settings(tmp_path), load_video_settings(tmp_path)
    assert (image.min_pixels, image.max_pixels) == (5000, 6000)
    assert (video.min_pixels, video.max_pixels) == (4096, 8192)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "video_preprocessor_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"video_preprocessor_config\.json is not valid JSON"):
        load_video_settings(tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"max_pixels": 10}, {"fps": 0}, {"min_frames": 9, "max_frames": 8}, {"patch_size": 0}]
)
def test_values_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        VideoSettings(**wrong)
