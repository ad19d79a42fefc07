"""Pictures taken apart."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.image_facts import layers
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.image_segments import segment


@pytest.mark.parametrize("index", range(25))
def test_background_light_and_one_piece_per_object_and_dot_are_found(index: int) -> None:
    scene = sample_image_scene(31, index)
    seen = segment(render_image(scene))
    assert (seen.background, seen.light) == (scene.background, scene.light)
    dots = [item.inside for item in scene.objects if item.inside is not None]
    assert sorted(piece.colour for piece in seen.pieces) == sorted(
        [*(item.colour for item in scene.objects), *dots]
    )
    # Every object's visible pixels belong to one piece of its colour, but for a few at its edges.
    truth = layers(scene)
    for number, item in enumerate(scene.objects):
        owners = seen.owner[truth.front == number]
        most = int(np.bincount(owners[owners >= 0]).argmax())
        assert seen.pieces[most].colour == item.colour
        assert (owners == most).mean() > 0.85
    ground = seen.owner[truth.front == -1]
    assert (ground == -1).mean() > 0.9


def test_an_empty_picture_has_no_pieces() -> None:
    seen = segment(np.full((128, 128, 3), 30, np.uint8))
    assert seen.pieces == ()
    assert seen.background == "black"
    assert seen.light is None


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        segment(np.zeros((8, 8, 3)))
    with pytest.raises(ValueError, match=r"\[8, 8\]"):
        segment(np.zeros((8, 8), np.uint8))
