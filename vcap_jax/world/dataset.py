"""Scenes of either modality by number, their pixels, and scenes as files: what a user's own data look like.

A folder gets the pictures (PNG) or clips (MP4) and ``manifest.jsonl``; nothing in them tells the facts.
Beside the manifest lies ``scenes.jsonl``, which only the counting of facts reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import av
import numpy as np
from PIL import Image

from vcap_jax.data.jsonl import read_objects
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import as_object, as_text
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import ImageScene, Modality, Scene, scene_from_json, scene_to_json
from vcap_jax.world.video_rendering import render_video
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import VIDEO_FPS

MANIFEST = "manifest.jsonl"
SCENES = "scenes.jsonl"
_CRF = "4"
"""x264's quality: high enough that hue and outline of small shapes survive halved colour resolution."""
_X264 = "cpu-independent=1"
"""x264's vector code for macroblock trees gives now and then another result for the same frames, one clip in a few
thousand and more on a busy machine; its portable code gives one result, on any processor."""


def sample_scene(modality: Modality, seed: int, index: int, split: str = "train") -> Scene:
    """The scene number ``index`` of a split: the same for the same arguments, on any machine."""
    return (sample_image_scene if modality == "image" else sample_video_scene)(seed, index, split)


def render(scene: Scene) -> np.ndarray:
    """The picture of a scene, uint8 [128, 128, 3], or its clip, uint8 [12, 96, 96, 3]."""
    return render_image(scene) if isinstance(scene, ImageScene) else render_video(scene)


class ScenesError(VCapError, ValueError):
    """A file of scenes that are not of this world; the message names the remedy."""


def write_png(path: Path, image: np.ndarray) -> None:
    """Writes uint8 [H, W, 3] as PNG."""
    Image.fromarray(image).save(path, compress_level=1)


def write_mp4(path: Path, frames: np.ndarray) -> None:
    """Writes uint8 [T, H, W, 3] (H and W even) as H.264, yuv420p, frame k at k / VIDEO_FPS seconds."""
    with av.open(str(path), "w") as container:
        options = {"crf": _CRF, "preset": "veryfast", "x264-params": _X264}
        stream = container.add_stream("libx264", rate=VIDEO_FPS, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        # One thread: starting more costs more than a clip of this size.
        stream.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def write_dataset(
    folder: str | Path, modality: Modality, split: str, count: int, seed: int, *, prompt: str | None = None
) -> Path:
    """Renders the first ``count`` scenes of a split; the path of the manifest, with rows ``{"id", "image" | "video":
    path, "prompt"?}``, paths relative to it.

    folder: made if missing; files of the same names are overwritten. split: any name; scenes of different splits are
    independent. seed: of the scenes. prompt: written into every row where given; without it, rows have none.
    """
    folder = Path(folder)
    suffix = "png" if modality == "image" else "mp4"
    media = folder / f"{modality}s"
    media.mkdir(parents=True, exist_ok=True)
    with (folder / MANIFEST).open("w") as manifest, (folder / SCENES).open("w") as scenes:
        for index in range(count):
            scene = sample_scene(modality, seed, index, split)
            name = f"{split}-{index:06d}"
            path = media / f"{name}.{suffix}"
            (write_png if modality == "image" else write_mp4)(path, render(scene))
            row = {"id": name, modality: path.relative_to(folder).as_posix()}
            if prompt is not None:
                row["prompt"] = prompt
            manifest.write(json.dumps(row) + "\n")
            scenes.write(json.dumps({"id": name, "scene": scene_to_json(scene)}) + "\n")
    return folder / MANIFEST


def read_scenes(folder: str | Path) -> Mapping[str, Scene]:
    """Scenes of a folder written by ``write_dataset``, by the id of their row.

    Raises ScenesError for a file that another version of the program has written.
    """
    path = Path(folder) / SCENES
    scenes = {}
    for number, row in read_objects(path, "file of scenes"):
        where = f"{path}:{number}"
        try:
            scene = scene_from_json(as_object(row["scene"], f"{where}: scene"))
            scenes[as_text(row["id"], f"{where}: id")] = scene
        except (KeyError, ValueError) as error:
            raise ScenesError(
                f"{where} is no scene of this version's embedded world: its folder is of another version, and cannot "
                "be gone on with; begin in a new folder"
            ) from error
    return scenes
