"""Questions that teach and test sight."""

from __future__ import annotations

from collections import Counter

import numpy as np

from vcap_jax.world.facts import scene_facts, scene_undecided
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.questions import answer_of, read_question
from vcap_jax.world.scenes import Scene
from vcap_jax.world.seeing import NONE, PRESENCE, SIGHT_KINDS, sight_questions
from vcap_jax.world.slots import question_of
from vcap_jax.world.video_scenes import sample_video_scene

SCENES: list[Scene] = [
    *(sample_image_scene(2, k) for k in range(40)),
    *(sample_video_scene(2, k) for k in range(40)),
]


def test_every_fact_is_asked_and_nothing_that_cannot_be_told() -> None:
    kinds: Counter[str] = Counter()
    empty: Counter[str] = Counter()
    for scene in SCENES:
        facts, undecided = scene_facts(scene), scene_undecided(scene)
        asked = {put.slot: put for put in sight_questions(scene, np.random.default_rng(0))}
        for slot, value in facts.items():
            assert asked[question_of(slot)].answer == answer_of(slot, value)
        assert not undecided & asked.keys()
        for put in asked.values():
            assert put.answer in put.options
            assert len(set(put.options)) == len(put.options) > 1
            kinds[put.kind] += 1
            empty[put.kind] += put.answer in (NONE, "no")
            if put.kind != PRESENCE:
                assert read_question(put.text) is not None
    assert kinds.keys() == set(SIGHT_KINDS)
    for kind in ("pattern", "mark", "inside", "level", "side", "overlap", "event", "cut 2", PRESENCE):
        assert 0 < empty[kind] < kinds[kind], kind


def test_an_empty_place_lacks_everything_and_a_filled_one_is_there() -> None:
    scene = SCENES[0]
    questions = sight_questions(scene, np.random.default_rng(0))
    answers = {put.slot[0]: put.answer for put in questions if put.kind == PRESENCE}
    assert len(answers) == 9
    assert {place for place, answer in answers.items() if answer == "yes"} == {
        thing.place for thing in scene.objects
    }


def test_the_wording_is_drawn_and_nothing_else() -> None:
    for scene in SCENES[::20]:
        asked = [sight_questions(scene, np.random.default_rng(seed)) for seed in range(6)]
        assert len({tuple((put.slot, put.answer) for put in questions) for questions in asked}) == 1
        assert len({questions[0].text for questions in asked}) > 1
