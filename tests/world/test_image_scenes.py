"""Sampled pictures: reproducible, of a known size, and such that every fact can be told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vcap_jax.world.image_facts import COVERS, LEVEL, UNEVEN, facts_and_undecided, layers
from vcap_jax.world.image_scenes import FACTS, IMAGE_EXTENTS, MOST_HIDDEN, sample_image_scene
from vcap_jax.world.scenes import ImageScene, scene_from_json, scene_to_json
from vcap_jax.world.vocabulary import COLUMN_NEIGHBOURS, DIRECTED, IMAGE_PLACES, ROW_NEIGHBOURS, VALUES


@pytest.fixture(scope="module")
def scenes() -> list[ImageScene]:
    return [sample_image_scene(7, index) for index in range(150)]


def test_a_scene_depends_on_seed_split_and_index_only(scenes: list[ImageScene]) -> None:
    assert sample_image_scene(7, 17) == scenes[17]
    assert len({sample_image_scene(*key) for key in ((7, 17), (8, 17), (7, 18), (7, 17, "test"))}) == 4


def test_a_scene_survives_json(scenes: list[ImageScene]) -> None:
    for scene in scenes[:30]:
        assert scene_from_json(json.loads(json.dumps(scene_to_json(scene)))) == scene


def test_pictures_have_as_many_facts_as_is_said(scenes: list[ImageScene]) -> None:
    facts = [facts_and_undecided(scene)[0] for scene in scenes]
    numbers = np.array([len(fact) for fact in facts])
    assert FACTS[0] <= numbers.min()
    assert numbers.max() <= FACTS[1]
    assert 25.5 < numbers.mean() < 29
    assert ((numbers >= 20) & (numbers <= 36)).mean() >= 0.85
    covered = np.mean([any(slot[-1] == "overlap" for slot in fact) for fact in facts])
    assert 0.4 < covered < 0.7
    for fact in facts:
        assert all(value in VALUES[str(slot[-1])] for slot, value in fact.items())
    assert {slot[-1] for fact in facts for slot in fact} >= {"inside", "mark", "pattern", "count", "side"}


def test_objects_lie_in_their_places_and_are_as_large_as_is_said(scenes: list[ImageScene]) -> None:
    for scene in scenes:
        assert len({item.place for item in scene.objects}) == len(scene.objects)
        for item in scene.objects:
            column, row = (int(coordinate * 3 // 128) for coordinate in item.centre)
            assert IMAGE_PLACES[3 * row + column] == item.place
            assert IMAGE_EXTENTS[item.size][0] <= item.extent <= IMAGE_EXTENTS[item.size][1]
            assert (item.direction is not None) == (item.shape in DIRECTED)
            large = item.size == "large"
            assert large or item.mark is item.pattern is item.inside is None
            assert item.inside is None or item.shape == "ring"


def test_neighbours_are_clearly_level_or_clearly_not(scenes: list[ImageScene]) -> None:
    uneven = []
    for scene in scenes:
        centres = {item.place: item.centre for item in scene.objects}
        for pairs, axis in ((ROW_NEIGHBOURS, 1), (COLUMN_NEIGHBOURS, 0)):
            for one, other in pairs:
                if one in centres and other in centres:
                    difference = abs(centres[one][axis] - centres[other][axis])
                    assert not LEVEL < difference < UNEVEN
                    uneven.append(difference >= UNEVEN)
    assert 0.35 < np.mean(uneven) < 0.65


def test_what_is_hidden_is_clearly_hidden_and_enough_is_seen(scenes: list[ImageScene]) -> None:
    for scene in scenes:
        seen = layers(scene)
        assert (seen.hidden_share <= [MOST_HIDDEN[item.size] for item in scene.objects]).all()
        assert (seen.hidden[seen.hidden > 0] >= COVERS).all()
        for back, front in zip(*np.nonzero(seen.hidden), strict=True):
            assert scene.objects[back].colour != scene.objects[front].colour
            assert front > back
        border = np.concatenate([seen.front[:3].ravel(), seen.front[-3:].ravel(), seen.front[:, :3].ravel()])
        assert (border == -1).all()
