"""Questions about scenes, and what captions answer to them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from vcap_jax.world.asking import WORDINGS, Asked, answer_of, read_question
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.questions import question, scene_questions, told_by
from vcap_jax.world.scenes import Scene, VideoScene
from vcap_jax.world.slots import question_of
from vcap_jax.world.video_scenes import sample_video_scene

MODALITIES = ("image", "video")


@cache
def scenes(modality: str) -> list[Scene]:
    """30 of them; drawn by the first test that asks."""
    sample = sample_image_scene if modality == "image" else sample_video_scene
    return [sample(1, k) for k in range(30)]


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_full_caption_answers_every_question_and_a_weak_one_those_it_speaks_of(modality: str) -> None:
    rng = np.random.default_rng(0)
    for scene in scenes(modality):
        facts, questions = scene_facts(scene), scene_questions(scene)
        assert len({put.text for put in questions}) == len(questions) == len(facts)
        full, weak = full_caption(scene, rng), weak_caption(scene, rng)
        claims = caption_claims(scene, weak)
        for (slot, value), put in zip(facts.items(), questions, strict=True):
            asked = read_question(put.text)
            assert asked is not None
            assert put.answer == answer_of(slot, value) in put.options
            assert len(set(put.options)) > 1
            assert told_by(full, asked) == put.answer
            told = {answer_of(s, v) for s, v in claims if question_of(s) == question_of(slot)}
            assert told_by(weak, asked) == (told.pop() if len(told) == 1 else None)


@pytest.mark.parametrize("modality", MODALITIES)
def test_every_wording_asks_the_same(modality: str) -> None:
    for scene in scenes(modality)[:10]:
        for slot in scene_facts(scene):
            texts = [question(scene, slot, wording) for wording in range(WORDINGS)]
            assert len(set(texts)) == WORDINGS
            about = {read_question(text) for text in texts}
            inside = isinstance(scene, VideoScene) and isinstance(slot[0], int)
            span = scene.shots[int(slot[0])].seconds if inside and isinstance(scene, VideoScene) else None
            assert about == {Asked(question_of(slot[1:] if inside else slot), span)}


@pytest.mark.parametrize("modality", MODALITIES)
def test_questions_about_references_are_their_true_facts(modality: str) -> None:
    rng = np.random.default_rng(1)
    for scene in scenes(modality):
        first, second = weak_caption(scene, rng), weak_caption(scene, rng)
        questions = scene_questions(scene, [first])
        # Whoever says what the reference says answers all of them, whatever else it makes up or leaves out.
        assert all(told_by(first, read_question(put.text) or Asked(())) == put.answer for put in questions)
        both = {*questions} | {*scene_questions(scene, [second])}
        assert both == {*scene_questions(scene, [first, second])}
        assert len(questions) < len(scene_facts(scene))


def test_who_covers_whom_is_answered_by_a_place() -> None:
    asked = read_question("Which lies in front, the top left one or the top center one?")
    assert asked is not None
    assert told_by("The top center one covers part of the top left one.", asked) == "top center"
    assert told_by("The top left one partly hides the top center one.", asked) == "top left"
    both = "The top left one covers part of the top center one. The top center one covers part of the top left one."
    assert told_by(both, asked) is None


def test_neighbours_are_asked_about_in_either_order() -> None:
    caption = "The top left one is higher than the top center one."
    for first, second, answer in (("left", "center", "higher"), ("center", "left", "lower")):
        asked = read_question(
            f"Is the one at the top {first} higher or lower than the one at the top {second}?"
        )
        assert asked is not None
        assert told_by(caption, asked) == answer
        assert told_by(f"{caption} The top left one is lower than the top center one.", asked) is None
    far = read_question("Is the one at the top left higher or lower than the one at the top right?")
    assert far is not None
    assert told_by(caption, far) is None


def test_contradictions_silence_and_foreign_questions_have_no_answer() -> None:
    asked = read_question("What colour is at the top left?")
    assert asked == Asked(("top left", "colour"))
    assert told_by("At the top left is a red circle. At the top left is a blue circle.", asked) is None
    assert told_by("At the top left is a circle.", asked) is None
    assert told_by("Nonsense.", asked) is None
    assert read_question("What mood is at the top left?") is None
    assert read_question("What colour is at the top left from 1.0 to 4.0?") is None
    moving = read_question("What colour is at the top left from 1.0 to 4.0 seconds?")
    assert moving == Asked(("top left", "colour"), (1.0, 4.0))
    caption = (
        "[0.0 - 1.0] At the top left a red circle moves left.\n[1.0 - 4.0] The top left shows a blue ring."
    )
    assert told_by(caption, moving) == "blue"
