"""What is drawn is what the scene says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vcap_jax.world.image_facts import layers
from vcap_jax.world.image_rendering import light_field, render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, LIGHTS


def test_a_picture_depends_on_its_scene_only() -> None:
    scene = sample_image_scene(3, 0)
    picture = render_image(scene)
    assert picture.shape == (128, 128, 3)
    assert picture.dtype == np.uint8
    assert np.array_equal(render_image(scene), picture)
    other = render_image(replace(scene, render_seed=scene.render_seed + 1))
    assert 0 < abs(other.astype(int) - picture).mean() < 15


def test_pixels_have_the_colours_of_what_is_in_front() -> None:
    for index in range(25):
        scene = sample_image_scene(4, index)
        picture, seen = render_image(scene).astype(float), layers(scene)
        for number, item in enumerate(scene.objects):
            plain = item.pattern is item.mark is None
            colour = np.median(picture[seen.front == number], axis=0)
            if plain:
                assert np.linalg.norm(colour - COLOURS[item.colour]) < 40, (index, item)
        # Where a ring is empty there is more than its background.
        ground = np.median(picture[seen.front == -1], axis=0)
        nearest = min(BACKGROUNDS, key=lambda name: float(np.linalg.norm(ground - BACKGROUNDS[name])))
        assert nearest == scene.background


@pytest.mark.parametrize("side", LIGHTS)
def test_the_light_comes_from_its_side(side: str) -> None:
    field = light_field(side)
    edges = {"left": field[:, 0], "right": field[:, -1], "above": field[0], "below": field[-1]}
    assert (edges.pop(side) == 1).all()
    assert all(edge.mean() < 0.5 for edge in edges.values())
    scene = replace(sample_image_scene(5, 1), background="black", light=side, objects=())
    brightness = render_image(scene).astype(float).mean(axis=-1)
    assert np.corrcoef(brightness.ravel(), field.ravel())[0, 1] > 0.8


def test_marks_patterns_and_dots_change_the_picture_where_they_are() -> None:
    found = set()
    for index in range(60):
        scene = sample_image_scene(6, index)
        for number, item in enumerate(scene.objects):
            for kind in ("mark", "pattern", "inside"):
                if getattr(item, kind) is None:
                    continue
                plain = replace(item, **{kind: None})
                objects = (*scene.objects[:number], plain, *scene.objects[number + 1 :])
                changed = (render_image(scene) != render_image(replace(scene, objects=objects))).any(axis=-1)
                rows, columns = np.nonzero(changed)
                x, y = item.centre
                assert np.hypot(columns + 0.5 - x, rows + 0.5 - y).max() < 0.75 * item.extent
                assert changed.sum() > 25
                found.add(kind)
        if len(found) == 3:
            return
    raise AssertionError(f"sixty scenes had only {found}")
