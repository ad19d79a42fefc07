"""The pixels of a scene of either modality."""

from __future__ import annotations

import numpy as np

from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.scenes import ImageScene, Scene
from vcap_jax.world.video_rendering import render_video


def render(scene: Scene) -> np.ndarray:
    """The picture of a scene, uint8 [128, 128, 3], or its clip, uint8 [12, 96, 96, 3]."""
    return render_image(scene) if isinstance(scene, ImageScene) else render_video(scene)
