"""Scenes of either modality by number."""

from __future__ import annotations

from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import Modality, Scene
from vcap_jax.world.video_scenes import sample_video_scene


def sample_scene(modality: Modality, seed: int, index: int, split: str = "train") -> Scene:
    """The scene number ``index`` of a split: the same for the same arguments, on any machine."""
    return (sample_image_scene if modality == "image" else sample_video_scene)(seed, index, split)
