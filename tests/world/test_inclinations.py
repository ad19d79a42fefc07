"""What the weak captioner tends to say."""

from __future__ import annotations

from functools import cache

from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.inclinations import MOST_HABITUAL, Habits, Inclination, inclinations
from vcap_jax.world.looks import looks
from vcap_jax.world.scenes import Scene
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import VALUES

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
