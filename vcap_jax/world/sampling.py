"""Scenes of either modality by number, and their pixels."""

from __future__ import annotations

import numpy as np

from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import ImageScene, Modality, Scene
from vcap_jax.world.video_rendering import render_video
from vcap_jax.world.video_scenes import sample_video_scene


def sample_scene(modality: Modality, seed: int, index: int, split: str = "train") -> Scene:
    """The scene number ``index`` of a split: the same for the same arguments, on any machine."""
    return (sample_image_scene if modality == "image" else sample_video_scene)(seed, index, split)


def render(scene: Scene) -> np.ndarray:
    """The picture of a scene, uint8 [128, 128, 3], or its clip, uint8 [12, 96, 96, 3]."""
    return render_image(scene) if isinstance(scene, ImageScene) else render_video(scene)
