"""Pieces of colour become things: with their shapes, behind one another, with dots in rings."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.image_facts import layers
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.image_segments import segment
from vcap_jax.world.image_things import covers, find_things


@pytest.mark.parametrize("index", range(20))
def test_things_are_the_objects_of_the_scene(index: int) -> None:
    scene = sample_image_scene(41, index)
    segments = segment(render_image(scene))
    things = {thing.place: thing for thing in find_things(segments)}
    assert things.keys() == {item.place for item in scene.objects}
    for item in scene.objects:
        thing = things[item.place]
        assert (thing.fit.shape, thing.fit.direction) == (item.shape, item.direction)
        assert (thing.piece.colour, thing.size, thing.inside) == (item.colour, item.size, item.inside)
        assert thing.fit.centre == pytest.approx(item.centre, abs=1.2)
        assert not thing.strange


def test_a_whole_thing_is_placed_to_a_fraction_of_a_pixel() -> None:
    away = []
    for index in range(12):
        scene = sample_image_scene(42, index)
        whole = layers(scene).hidden_share == 0
        things = {thing.place: thing for thing in find_things(segment(render_image(scene)))}
        away += [
            np.subtract(things[item.place].fit.centre, item.centre)
            for item, all_seen in zip(scene.objects, whole, strict=True)
            if all_seen
        ]
    assert np.sqrt(np.square(away).mean()) < 0.25


def test_shares_that_are_hidden_are_those_of_the_scene() -> None:
    pairs = 0
    for index in range(20):
        scene = sample_image_scene(43, index)
        segments = segment(render_image(scene))
        things = find_things(segments)
        places = {thing.index: thing.place for thing in things}
        found = {
            (places[front], places[back]): share for (front, back), share in covers(things, segments).items()
        }
        hidden = layers(scene).hidden
        for back, front in zip(*np.nonzero(hidden), strict=True):
            pair = scene.objects[front].place, scene.objects[back].place
            assert found.pop(pair) == pytest.approx(hidden[back, front], abs=0.07)
            pairs += 1
        assert all(share < 0.03 for share in found.values())
    assert pairs >= 5
