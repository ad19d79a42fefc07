"""Captions of the weak captioner: how weak they are, and that the bound holds for every one."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from vcap_jax.world.captions import full_caption, say
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.habits import (
    MOST_HABITUAL,
    MOST_STATED,
    Habits,
    Inclination,
    SceneHabit,
    inclinations,
    report_habit,
    scene_habit,
    stated_slots,
)
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.looks import looks
from vcap_jax.world.scenes import Scene
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, IMAGE_PLACES, OBJECTS, VALUES, VIDEO_PLACES, Slot

HABITS = Habits()


@cache
def scenes() -> list[Scene]:
    """Pictures and clips; drawn by the first test that asks."""
    return [sample(3, k) for sample in (sample_image_scene, sample_video_scene) for k in range(40)]


def lean(scene: Scene, habits: Habits = HABITS) -> tuple[Inclination, ...]:
    return inclinations(scene, scene_facts(scene), habits)


def test_every_kind_of_fact_has_a_rate_of_its_own() -> None:
    names = {kind.replace(" ", "_") for kind in VALUES}
    assert all(hasattr(HABITS, name) for name in names)


def test_what_may_be_told_are_facts_and_the_habit_is_less_than_half_of_them() -> None:
    for scene in scenes():
        facts, found = scene_facts(scene), lean(scene)
        assert len({item.true[0] for item in found}) == len(found)
        assert all(facts[item.true[0]] == item.true[1] for item in found)
        assert 1 <= sum(item.habitual for item in found) <= MOST_HABITUAL * len(facts)
        assert all(item.true[0] == item.told[0] for item in found)


def test_the_habit_is_a_few_large_objects_and_everything_else_is_rare() -> None:
    kinds = set()
    for scene in scenes():
        seen = looks(scene)
        found = lean(scene)
        owners = {item.true[0][:-1] for item in found if item.habitual} & seen.keys()
        assert len(owners) <= 4
        standing_out = {owner for owner, look in seen.items() if look.kind == "standing_out"}
        if len(standing_out) >= 2 and len(standing_out) <= HABITS.most_objects and len(next(iter(seen))) == 1:
            assert owners <= standing_out
        for item in found:
            kinds.add((item.true[0][-1], item.habitual))
            assert item.habitual or item.likelihood <= 0.31
    told = {kind for kind, habitual in kinds if habitual}
    assert told == {"shape", "colour", "size", "background", "motion", "shots", "cut 1"}


def test_nothing_is_habitually_said_of_a_third_shot() -> None:
    late = [item for scene in scenes() for item in lean(scene) if item.true[0][0] == 2]
    assert late
    assert max(item.likelihood for item in late) < HABITS.late_shot


def test_when_and_into_what_is_told_only_with_the_event() -> None:
    for item in (
        item for scene in scenes() for item in lean(scene) if item.true[0][-1] in ("event", "time", "into")
    ):
        assert (*item.true[0][:-1], "event") in [name for name, _ in item.gates]


MODALITIES = ("image", "video")
EAGER = Habits(**{field.name: 1.0 for field in fields(Habits) if field.type == "float"})


@cache
def habit_of(modality: str, number: int) -> SceneHabit:
    sample = sample_image_scene if modality == "image" else sample_video_scene
    return scene_habit(sample(4, number))


def habits(modality: str, count: int = 150) -> list[SceneHabit]:
    """Each is drawn by the first test that asks."""
    return [habit_of(modality, number) for number in range(count)]


# To draw 150 pictures takes seconds.
by_modality = pytest.mark.parametrize("modality", [pytest.param("image", marks=pytest.mark.slow), "video"])


@by_modality
def test_the_habit_tells_a_third_and_a_tenth_of_that_is_false(modality: str) -> None:
    rng = np.random.default_rng(0)
    greedy = report_habit((habit.scene, say(habit.scene, habit.claims(), rng)) for habit in habits(modality))
    assert 0.24 < greedy.coverage < 0.40
    assert 0.07 < greedy.false_share < 0.16
    assert greedy.largest_stated <= MOST_STATED
    drawn = report_habit((habit.scene, habit.caption(rng)) for habit in habits(modality) for _ in range(2))
    assert abs(drawn.coverage - greedy.coverage) < 0.05
    assert abs(drawn.false_share - greedy.false_share) < 0.05


@by_modality
def test_exceptions_are_rare_each_kind_at_its_own_rate(modality: str) -> None:
    rng = np.random.default_rng(1)
    rates = report_habit((habit.scene, habit.caption(rng)) for habit in habits(modality) for _ in range(6))
    kinds = {
        "image": (
            "pattern",
            "direction",
            "mark",
            "inside",
            "level",
            "side",
            "overlap",
            "objects",
            "count",
            "light",
        ),
        "video": ("event", "time", "into", "camera", "first", "cut 2"),
    }[modality]
    for kind in kinds:
        assert 0 < rates.mention_rates[kind] < 0.12, kind
    for kind in ("shape", "colour", "background"):
        assert rates.mention_rates[kind] > 0.3


@pytest.mark.parametrize("modality", MODALITIES)
def test_whoever_would_tell_all_still_tells_half_at_most(modality: str) -> None:
    rng = np.random.default_rng(2)
    for habit in habits(modality, 40):
        text = scene_habit(habit.scene, EAGER).caption(rng)
        stated = stated_slots(habit.facts, caption_claims(habit.scene, text))
        assert 0.3 * len(habit.facts) < len(stated) <= MOST_STATED * len(habit.facts)


def test_a_silent_captioner_says_one_thing() -> None:
    silent = replace(EAGER, **{field.name: 0.0 for field in fields(Habits) if field.type == "float"})
    for habit in habits("image", 5):
        text = scene_habit(habit.scene, silent).caption(np.random.default_rng(0))
        assert len(caption_claims(habit.scene, text)) == 1


@by_modality
def test_mistakes_are_made_nearly_always_and_not_always(modality: str) -> None:
    rng = np.random.default_rng(3)
    told = right = 0
    for habit in habits(modality):
        mistakes = {item.true[0]: item for item in habit.tendencies if item.true != item.told}
        for _ in range(4):
            for slot, value in caption_claims(habit.scene, habit.caption(rng)):
                if slot in mistakes:
                    told += 1
                    right += (slot, value) == mistakes[slot].true
    assert 0.03 < right / told < 0.12


def test_the_same_draws_give_the_same_caption() -> None:
    scenes: list[Scene] = [habit.scene for modality in MODALITIES for habit in habits(modality, 3)]
    for scene in scenes:
        texts = {scene_habit(scene).caption(np.random.default_rng(7)) for _ in range(2)}
        assert len(texts) == 1
        assert scene_habit(scene).claims().keys() <= scene_facts(scene).keys()


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
