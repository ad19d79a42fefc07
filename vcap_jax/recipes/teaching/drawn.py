"""Scenes and their pixels, as drawn by processes that need no JAX."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from vcap_jax.world.dataset import sample_scene, write_mp4
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.scenes import ImageScene, Modality, Scene
from vcap_jax.world.video_rendering import render_video

SEED = 0
"""Of the scenes."""


def scene_pixels(scene: Scene) -> np.ndarray:
    """What a user's program would decode: the picture, or the clip after its trip through H.264."""
    if isinstance(scene, ImageScene):
        return render_image(scene)
    import av

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        path = Path(folder) / "clip.mp4"
        write_mp4(path, render_video(scene))
        with av.open(str(path)) as container:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def draw(job: tuple[Modality, str, int]) -> tuple[Scene, np.ndarray]:
    """Scene and pixels of (modality, split, index)."""
    modality, split, index = job
    scene = sample_scene(modality, SEED, index, split)
    return scene, scene_pixels(scene)
