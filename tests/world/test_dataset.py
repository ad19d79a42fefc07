"""Scenes as files: the same seed gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from vcap_jax.world.dataset import (
    SCENES,
    ScenesError,
    read_scenes,
    render,
    sample_scene,
    write_dataset,
    write_mp4,
)
from vcap_jax.world.scenes import ImageScene, Modality, VideoScene
from vcap_jax.world.vocabulary import VIDEO_FPS


def test_modality_seed_split_and_number_each_make_another_scene() -> None:
    image, video = sample_scene("image", 0, 0), sample_scene("video", 0, 0)
    assert isinstance(image, ImageScene)
    assert isinstance(video, VideoScene)
    for scene, modality in ((image, "image"), (video, "video")):
        others = [sample_scene(modality, *which) for which in ((1, 0), (0, 1), (0, 0, "heldout"))]
        assert scene not in others
        assert scene == sample_scene(modality, 0, 0, "train")


def decoded(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="yuv420p") for frame in container.decode(video=0)])


def encoded_without_vector_code(path: Path, frames: np.ndarray) -> np.ndarray:
    """What x264 makes of the frames in plain C with the settings of ``write_mp4``, decoded."""
    with av.open(str(path), "w") as container:
        options = {"crf": "4", "preset": "veryfast", "x264-params": "asm=0"}
        stream = container.add_stream("libx264", rate=VIDEO_FPS, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return decoded(path)


def test_a_clip_does_not_depend_on_the_vector_code_of_the_encoder(tmp_path: Path) -> None:
    """By default it does, with most clips of this world: two runs of one seed then part in their last digits."""
    for index in range(3):
        frames = render(sample_scene("video", 0, index, "train"))
        write_mp4(tmp_path / "clip.mp4", frames)
        plain = encoded_without_vector_code(tmp_path / "plain.mp4", frames)
        np.testing.assert_array_equal(decoded(tmp_path / "clip.mp4"), plain)


@pytest.mark.parametrize("modality", ["image", "video"])
def test_what_is_written_is_the_manifest_its_files_and_the_scenes(modality: Modality, tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, modality, "split", 2, 7, prompt="What is there?")
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    for index, row in enumerate(rows):
        scene = sample_scene(modality, 7, index, "split")
        assert row == {
            "id": f"split-{index:06d}",
            modality: row[modality],
            "prompt": "What is there?",
        }, "nothing tells the facts"
        path = manifest.parent / row[modality]
        if modality == "image":
            np.testing.assert_array_equal(np.asarray(Image.open(path)), render(scene))
        else:
            assert decoded(path).shape[0] == len(render(scene))
        assert read_scenes(tmp_path)[row["id"]] == scene
    write_dataset(tmp_path / "again", modality, "split", 2, 7, prompt="What is there?")
    for row in rows:
        assert (tmp_path / row[modality]).read_bytes() == (tmp_path / "again" / row[modality]).read_bytes()


@pytest.mark.parametrize(
    "scene", [{"modality": "image", "objects": [], "colour_of": {}}, {"modality": "sound"}, []]
)
def test_scenes_of_another_version_are_refused_with_the_remedy(tmp_path: Path, scene: object) -> None:
    (tmp_path / SCENES).write_text(json.dumps({"id": "train-000000", "scene": scene}) + "\n")
    with pytest.raises(ScenesError, match=r"scenes\.jsonl:1 .* another version.* begin in a new folder"):
        read_scenes(tmp_path)
