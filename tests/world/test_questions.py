"""Questions about scenes, and what captions answer to them."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_judge.embedded.adjudication import claimed_values
from vcap_jax.world.captions import VALUES, full_caption, weak_caption
from vcap_jax.world.facts import caption_claims, count_facts, scene_facts
from vcap_jax.world.questions import Asked, read_question, scene_questions, told_by
from vcap_jax.world.scenes import Modality, sample_scene


@pytest.mark.parametrize("modality", ["image", "video"])
def test_a_full_caption_answers_every_question_and_a_weak_one_those_it_speaks_of(modality: Modality) -> None:
    rng = np.random.default_rng(0)
    for index in range(300):
        scene = sample_scene(modality, 1, index)
        facts, questions = scene_facts(scene), scene_questions(scene)
        assert len({text for text, _, _ in questions}) == len(questions) == len(facts)
        full, weak = full_caption(scene, rng), weak_caption(scene, rng)
        told = claimed_values(caption_claims(scene, weak))
        for (slot, value), (text, options, answer) in zip(facts.items(), questions, strict=True):
            asked = read_question(text)
            assert asked is not None
            assert answer == value
            assert options == tuple(VALUES[str(slot[-1])])
            assert told_by(full, asked) == value
            values = told.get(slot, ())
            assert told_by(weak, asked) == (values[0] if len(values) == 1 else None)


@pytest.mark.parametrize("modality", ["image", "video"])
def test_questions_about_references_are_their_m_true_facts(modality: Modality) -> None:
    rng = np.random.default_rng(1)
    for index in range(100):
        scene = sample_scene(modality, 1, index)
        first, second = weak_caption(scene, rng), weak_caption(scene, rng)
        questions = scene_questions(scene, [first])
        claimed = claimed_values(caption_claims(scene, first))
        consistent = [slot for slot, values in claimed.items() if values == (scene_facts(scene).get(slot),)]
        assert len(questions) == len(consistent) <= count_facts(scene, first).correct
        # Whoever says what the reference says answers all of them, whatever else it makes up or leaves out.
        right = [told_by(first, read_question(text) or Asked(())) == answer for text, _, answer in questions]
        assert all(right)
        assert {*questions} | {*scene_questions(scene, [second])} == {
            *scene_questions(scene, [first, second])
        }


def test_contradictions_silence_and_foreign_questions_have_no_answer() -> None:
    asked = read_question("What is the colour of the object at the top left?")
    assert asked == Asked(("top left", "colour"))
    assert told_by("At the top left is a red circle. At the top left is a blue circle.", asked) is None
    assert told_by("At the top left is a circle.", asked) is None
    assert told_by("Nonsense.", asked) is None
    assert read_question("What is the mood of the object at the top left?") is None
    moving = read_question("What is the colour of the object at the top left from 1.0 to 4.0 seconds?")
    assert moving is not None
    assert moving.span == (1.0, 4.0)
    caption = (
        "[0.0 - 1.0] At the top left a red circle moves left.\n[1.0 - 4.0] The top left shows a blue ring."
    )
    assert told_by(caption, moving) == "blue"
