"""Captions in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import full_caption
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.habit_report import report_habit
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import Scene
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, IMAGE_PLACES, OBJECTS, VIDEO_PLACES, Slot


def test_shares_and_rates() -> None:
    scene = sample_image_scene(0, 0)
    facts = scene_facts(scene)
    wrong = next(name for name in BACKGROUNDS if name != scene.background)
    first = f"There are {facts[OBJECTS]} objects. The background is {wrong}."
    report = report_habit([(scene, first), (scene, f"The background is {scene.background}. Nothing else.")])
    total = len(facts)
    assert report.captions == 2
    assert report.mean_stated == pytest.approx(1.5 / total)
    assert report.largest_stated == pytest.approx(2 / total)
    assert report.beyond_half == 0
    assert report.coverage == pytest.approx(1 / total)
    assert report.false_share == pytest.approx(1 / 3)
    assert report.mention_rates["objects"] == 0.5
    assert report.mention_rates["background"] == 1
    assert report.mention_rates["shape"] == 0
    assert report.false_rates == {"background": 0.5, "objects": 0}


def test_captions_of_more_than_half_the_facts_are_counted() -> None:
    scene = sample_image_scene(0, 0)
    whole = full_caption(scene, np.random.default_rng(0))
    assert report_habit([(scene, whole), (scene, "Nothing."), (scene, "")]).beyond_half == pytest.approx(
        1 / 3
    )


def test_claims_of_objects_where_nothing_lies_are_inventions() -> None:
    scene = sample_image_scene(0, 0)
    (there, *_), (empty, *_) = by_whether_there(scene, [(place,) for place in IMAGE_PLACES])
    facts = scene_facts(scene)
    wrong = next(colour for colour in COLOURS if colour != facts[*there, "colour"])
    text = f"At the {empty[0]} is a star. At the {there[0]} is a {wrong} {facts[*there, 'shape']}."
    report = report_habit([(scene, text), (scene, full_caption(scene, np.random.default_rng(0)))])
    assert report.invented_share * report.claims == 1
    assert report.false_share * report.claims == 2


def test_so_are_those_of_a_shot_where_nothing_lies() -> None:
    scene = sample_video_scene(0, 0)
    _, (empty, *_) = by_whether_there(scene, [(0, place) for place in VIDEO_PLACES])
    start, end = scene.shots[0].seconds
    text = f"[{start:.1f} - {end:.1f}] At the {empty[1]} there is a star moving right."
    report = report_habit([(scene, text), (scene, full_caption(scene, np.random.default_rng(0)))])
    assert report.invented_share * report.claims == 2


def by_whether_there(scene: Scene, owners: list[Slot]) -> tuple[list[Slot], list[Slot]]:
    things = {slot[:-1] for slot in scene_facts(scene) if slot[-1] == "shape"}
    return [owner for owner in owners if owner in things], [owner for owner in owners if owner not in things]


def test_no_captions_are_refused() -> None:
    with pytest.raises(ValueError, match="no captions"):
        report_habit([])
