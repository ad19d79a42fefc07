"""Scenes by modality and number."""

from __future__ import annotations

from vcap_jax.world.sampling import sample_scene
from vcap_jax.world.scenes import ImageScene, VideoScene


def test_modality_seed_split_and_number_each_make_another_scene() -> None:
    image, video = sample_scene("image", 0, 0), sample_scene("video", 0, 0)
    assert isinstance(image, ImageScene)
    assert isinstance(video, VideoScene)
    for scene, modality in ((image, "image"), (video, "video")):
        others = [sample_scene(modality, *which) for which in ((1, 0), (0, 1), (0, 0, "heldout"))]
        assert scene not in others
        assert scene == sample_scene(modality, 0, 0, "train")
