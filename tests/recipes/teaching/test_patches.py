"""Labels of patches are those of the objects that fill them, in the order in which the tower takes patches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recipes.teaching.prompter import processor
from vcap_jax.recipes.teaching.patches import PATCH_PROBES, fills, patch_targets
from vcap_jax.world.image_facts import layers
from vcap_jax.world.sampling import sample_scene
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts
from vcap_jax.world.video_facts import seen_frames


def test_patches_are_filled_in_the_order_of_the_vision_tower() -> None:
    """A picture whose grey level is the number of its object comes out of the processor alike."""
    front = np.random.default_rng(0).integers(0, 5, (8, 8)).repeat(16, 0).repeat(16, 1)
    picture = np.repeat(front[..., None], 3, 2).astype(np.uint8)
    patches = Prompts(processor(), "image").patches(picture)[0]
    assert (patches == patches[:, :1]).all()
    assert fills(front, 5).tolist() == patches[:, 0].tolist()


def test_a_patch_with_little_of_an_object_holds_nothing() -> None:
    front = np.full((96, 96), -1)
    front[:4, :12] = 0  # 48 of 256 pixels
    front[:4, 16:27] = 1  # 44
    assert fills(front, 2)[:2].tolist() == [0, -1]


@pytest.mark.parametrize("modality", ["image", "video"])
def test_every_view_has_the_answers_of_its_objects(modality: Modality) -> None:
    probes = PATCH_PROBES[modality]
    for index in range(4):
        scene = sample_scene(modality, 0, index, "test")
        found = patch_targets(scene)
        assert found.keys() == probes.keys()
        if modality == "image":
            views = [scene.objects]
        else:
            views = [
                [thing for thing in shot.objects if first in seen_frames(shot, thing)]
                for shot in scene.shots
                for first in range(shot.first, shot.last, 2)
            ]
        assert {own.shape for own in found.values()} == {(len(views), 64 if modality == "image" else 36)}
        for number, objects in enumerate(views):
            told = {probes["shape"][value] for value in found["shape"][number]} - {"nothing"}
            assert told <= {item.shape for item in objects}
            # A large object fills patches, unless it is hidden.
            assert {item.shape for item in objects if item.size == "large"} <= told or modality == "image"
            nothing = {name: own[number] == 0 for name, own in found.items()}
            assert all((own == nothing["shape"]).all() for own in nothing.values())


def test_a_picture_has_the_share_of_filled_patches_that_its_objects_cover() -> None:
    scene = sample_scene("image", 0, 2, "test")
    front = layers(scene).front
    filled = (patch_targets(scene)["shape"][0] > 0).sum()
    touched = (front.reshape(8, 16, 8, 16) >= 0).any((1, 3)).sum()
    assert (front >= 0).sum() / 256 < filled + 8
    assert filled <= touched
