"""Lessons ask about one thing and answer it truly."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.recipes.teaching.lessons import NOTHING, fact_lesson, place_lesson, places_of
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.questions import answer_of, read_question
from vcap_jax.world.sampling import sample_scene
from vcap_jax.world.scenes import Modality
from vcap_jax.world.slots import question_of
from vcap_jax.world.video_grammar import parse_segment


@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_fact_is_asked_for_and_answered(modality: Modality) -> None:
    scene, rng = sample_scene(modality, 0, 0, "test"), np.random.default_rng(0)
    facts = scene_facts(scene)
    for slot, value in facts.items():
        lesson = fact_lesson(scene, facts, slot, rng)
        asked = read_question(lesson.question)
        assert asked is not None
        assert question_of(asked.slot) == question_of(slot[1:] if asked.span else slot)
        assert (lesson.kind, lesson.answer, lesson.states) == (slot[-1], answer_of(slot, value), 1)


@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_place_is_told_with_all_that_is_known_of_it(modality: Modality) -> None:
    scene, rng = sample_scene(modality, 0, 1, "test"), np.random.default_rng(0)
    facts = scene_facts(scene)
    told = 0
    for owner in places_of(scene):
        lesson = place_lesson(scene, facts, owner, rng)
        sentences = (
            parse_segment(lesson.answer) if modality == "video" else parse_image(lesson.answer).sentences
        )
        claims = {claim for sentence in sentences for claim in sentence.claims}
        own = {(slot[-2:], value) for slot, value in facts.items() if slot[:-1] == owner}
        assert claims == own
        assert lesson.states == len(own)
        assert (lesson.answer == NOTHING) == (not own)
        told += len(own)
    kinds = {
        "shape",
        "colour",
        "size",
        "pattern",
        "direction",
        "mark",
        "inside",
        "motion",
        "event",
        "time",
        "into",
    }
    assert told == sum(slot[-1] in kinds for slot in facts)


def test_nothing_claims_nothing() -> None:
    assert not caption_claims(sample_scene("image", 0, 0, "test"), NOTHING)
