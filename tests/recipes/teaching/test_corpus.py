"""What the policy is taught to say is counted, and nothing says too much."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recipes.teaching.prompter import processor
from vcap_jax.models.message import ImagePart, TextPart
from vcap_jax.recipes.teaching.corpus import (
    NOTHING,
    RELATIONS,
    Continuation,
    Corpus,
    Lesson,
    Packer,
    Stated,
    TooMuchStated,
    batched,
    fact_lesson,
    place_lesson,
    places_of,
)
from vcap_jax.world.asking import WORDINGS, answer_of, read_question
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.habits import MOST_STATED, SceneHabit
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.questions import question
from vcap_jax.world.scenes import Modality
from vcap_jax.world.slots import question_of
from vcap_jax.world.tiny_policy import Prompts
from vcap_jax.world.video_grammar import parse_segment
from vcap_jax.world.vocabulary import IMAGE_PLACES


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


@pytest.mark.parametrize("modality", ["image", "video"])
def test_no_text_states_more_than_half_of_its_scene(modality: Modality) -> None:
    scenes = [sample_scene(modality, 0, index, "test") for index in range(6)]
    corpus, rng = Corpus(scenes), np.random.default_rng(0)
    shares = []
    for index, scene in enumerate(scenes):
        facts = scene_facts(scene)
        lessons = corpus.lessons(index, "places", 5, rng) + corpus.lessons(index, "attributes", 5, rng)
        assert all(0 <= lesson.states <= len(facts) / 2 for lesson in lessons)
        claims = [caption_claims(scene, text) for text in corpus.habitual(index, 5, rng)]
        shares += [len({slot for slot, _ in each if slot in facts}) / len(facts) for each in claims]
    rows = corpus.rows()
    assert rows["answers"]["texts"] == 60
    assert rows["captions"]["texts"] == 30
    assert rows["captions"]["largest_share"] == pytest.approx(max(shares), abs=1e-4)
    assert rows["captions"]["mean_share"] == pytest.approx(np.mean(shares), abs=1e-4)
    assert 0 < rows["answers"]["largest_share"] <= MOST_STATED
    assert max(shares) <= MOST_STATED


def test_questions_are_about_what_is_asked_for_and_all_kinds_are() -> None:
    corpus, rng = Corpus([sample_scene("image", 0, 3, "test")]), np.random.default_rng(0)
    kinds = {str(slot[-1]) for slot in scene_facts(corpus.scenes[0])}
    abouts = ("first", "places", "attributes", "relations")
    asked = {about: corpus.lessons(0, about, 200, rng) for about in abouts}
    facts = scene_facts(corpus.scenes[0])
    looks = {slot for slot in facts if slot[0] in IMAGE_PLACES and len(slot) == 2}
    assert {lesson.question for lesson in asked["first"]} == {
        question(corpus.scenes[0], slot, WORDINGS - 1) for slot in looks
    }
    assert {lesson.kind for lesson in asked["places"]} == {"thing"}
    assert len({lesson.question for lesson in asked["places"]}) == 3 * 9
    assert {lesson.kind for lesson in asked["attributes"]} == kinds - set(RELATIONS)
    assert {lesson.kind for lesson in asked["relations"]} == kinds & set(RELATIONS) != set()


def test_a_text_that_states_more_is_refused() -> None:
    stated = Stated()
    stated.count(10, 20, "as much as may be")
    with pytest.raises(TooMuchStated, match="11 of its scene's 20 facts: 'too much'"):
        stated.count(11, 20, "too much")


def test_counting_begins_anew_when_it_is_told_to() -> None:
    corpus = Corpus([sample_scene("image", 0, 0, "test")])
    corpus.lessons(0, "places", 4, np.random.default_rng(0))
    corpus.forget()
    assert corpus.rows()["answers"] == {"texts": 0, "largest_share": 0.0, "mean_share": 0.0}


def test_a_caption_that_states_more_is_never_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SceneHabit, "_draw", lambda self, _: self.facts)
    corpus = Corpus([sample_scene("image", 0, 0, "test")])
    with pytest.raises(TooMuchStated, match="a text states"):
        corpus.habitual(0, 1, np.random.default_rng(0))


LESSON = Lesson("colour", "What colour is at the top left?", "red", 1)


def test_an_opening_with_a_lesson_is_the_processors_chat() -> None:
    """The question asked through the chat template, and the answer after it: the same tokens."""
    pixels = np.zeros((128, 128, 3), np.uint8)
    chat = processor().encode([ImagePart(pixels), TextPart(LESSON.question)]).tokens
    answer = processor().tokenizer(LESSON.answer, add_special_tokens=False)["input_ids"]
    lesson = Packer(processor()).lesson(LESSON)
    opening = np.asarray(Prompts(processor(), "image").openings(1).tokens)[0]
    end = processor().eos_token_ids[0]
    assert [*opening.tolist(), *lesson.tokens] == [*chat.tolist(), *answer, end]
    assert lesson.tokens[lesson.answer :] == (*answer, end)


def test_a_batch_has_every_continuation_and_where_its_answer_is() -> None:
    one, two, none = Continuation((5, 6, 7), 1), Continuation((8, 9), 0), Continuation((), 0)
    batch = batched([[one, two], [none, one]], 4)
    assert batch.tokens.tolist() == [[[5, 6, 7, 0], [8, 9, 0, 0]], [[0] * 4, [5, 6, 7, 0]]]
    assert batch.starts.tolist() == [[1, 0], [0, 1]]
    assert batch.lengths.tolist() == [[3, 2], [0, 3]]


def test_a_continuation_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="a lesson has 3 tokens, there is room for 2"):
        batched([[Continuation((1, 2, 3), 0)]], 2)
