"""Questions and their answers as lines of a text."""

from __future__ import annotations

import pytest

from vcap_jax.world.asking import NOTHING, PLACE_FORMS, Asked, put, take_answers
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.questions import scene_questions
from vcap_jax.world.scenes import Modality, VideoScene
from vcap_jax.world.video_grammar import parse_video


@pytest.mark.parametrize("modality", ["image", "video"])
def test_answers_behind_their_questions_claim_what_they_answer(modality: Modality) -> None:
    for index in range(20):
        scene = sample_scene(modality, 51, index)
        lines = [f"{put.text} {put.answer}" for put in scene_questions(scene)]
        assert dict(caption_claims(scene, "\n".join(lines))) == scene_facts(scene)
        # A full stop and capitals are no other answer.
        spoken = [f"{put.text} {put.answer.capitalize()}." for put in scene_questions(scene)]
        assert dict(caption_claims(scene, "\n".join(spoken))) == scene_facts(scene)
        # An answer counts as what a caption says, also beside one.
        caption = "At the top left is a red circle." if modality == "image" else "[0.0 - 1.0] It is red."
        assert {*caption_claims(scene, f"{caption}\n{lines[0]}")} >= {*caption_claims(scene, lines[0])}


def test_a_place_is_answered_by_a_caption_or_said_to_be_empty() -> None:
    for form in PLACE_FORMS:
        question = form.format(place="top left", when="")
        told = parse_image(f"It is dark.\n{question} At the top left is a red star. There are six objects.")
        assert told.claims == (
            (("top left", "shape"), "star"),
            (("top left", "colour"), "red"),
            (("scene", "objects"), "six"),
        )
        assert told.empty == ()
        # Who asks in a caption writes text that describes nothing.
        assert question in [sentence.text for sentence in told.sentences if not sentence.claims]
        bare = parse_image(f"{question} {NOTHING}")
        assert (bare.claims, bare.empty) == ((), (("top left",),))
        assert [sentence.claims for sentence in bare.sentences] == [()]


@pytest.mark.parametrize(
    "line",
    [
        "What colour is at the top left? large",  # no option of this question
        "What colour is at the top left?",
        "What colour is at the top left? red or blue",
        "What mood is at the top left? red",
        "Nothing.",
        "Is it red? Nothing.",
        "Which covers the other, the one at the top left or the one at the top center? bottom left",
        "Which covers the other, the one at the top left or the one at the top left? top left",
        "How many circles are there? one",  # a number of a shape begins at two
        # What a picture does not have.
        "Is the one at the top left higher or lower than the one at the bottom left? higher",
        "Is the one at the top left further left or further right than the one at the top left? further left",
        "How does the one at the top left move? left",
        "When does something happen at the top left? 1.0",
        "What does the camera do? still",
        "Where does something happen first? top left",
        "How many shots are there? two",
    ],
)
def test_other_lines_claim_nothing(line: str) -> None:
    told = parse_image(line)
    assert (told.claims, told.empty) == ((), ())
    assert " ".join(sentence.text for sentence in told.sentences) == line


def test_who_covers_whom_is_claimed_of_the_one_that_is_answered() -> None:
    asked = put(Asked(("top center", "top left", "overlap")))
    claim = ((("top center", "top left", "overlap"), "covers"),)
    assert parse_image(f"{asked} top center").claims == claim


def test_neighbours_are_compared_in_one_order_whichever_is_asked_of() -> None:
    level, side = ("top left", "top center", "level"), ("top left", "middle left", "side")
    for slot, value, turned in ((level, "higher", "lower"), (side, "further right", "further left")):
        claims = ((slot, value),)
        assert parse_image(f"{put(Asked(slot))} {value}").claims == claims
        back = put(Asked((slot[1], slot[0], slot[2])))
        assert parse_image(f"{back} {turned}").claims == claims
        # What contradicts a sentence is another value of its slot.
        told = parse_image(f"The {slot[0]} one is {value} than the {slot[1]} one.\n{back} {value}")
        assert told.claims == (*claims, (slot, turned))


def test_an_answer_about_a_clip_is_about_the_shot_whose_times_are_asked_of() -> None:
    scene = sample_scene("video", 52, 0)
    assert isinstance(scene, VideoScene)
    start, end = scene.shots[0].seconds
    asked = f"What colour is the background from {start:.1f} to {end:.1f} seconds? navy"
    assert caption_claims(scene, asked) == (((0, "scene", "background"), "navy"),)
    # Without times it is of no shot.
    bare = "What colour is the background? navy"
    # Nor is there anything of the kind, or at the place, in a clip.
    pattern = f"What pattern is at the top left from {start:.1f} to {end:.1f} seconds? striped"
    ninth = f"What colour is at the middle center from {start:.1f} to {end:.1f} seconds? red"
    for line in (bare, pattern, ninth):
        assert caption_claims(scene, line) == ()
        assert [sentence.text for sentence in parse_video(line).sentences] == [line]


def test_a_place_of_a_clip_is_answered_for_the_shot_whose_times_are_asked_of() -> None:
    scene = sample_scene("video", 52, 0)
    assert isinstance(scene, VideoScene)
    (_, cut), (_, end) = scene.shots[0].seconds, scene.shots[1].seconds
    caption = f"[0.0 - {cut:.1f}] The background is navy."
    told = parse_video(
        f"{caption}\n"
        f"What is at the top left from {cut:.1f} to {end:.1f} seconds? At the top left a red ring moves up.\n"
        f"What is at the top right from 0.0 to {cut:.1f} seconds? Nothing."
    )
    shots = [shot.seconds for shot in scene.shots]
    assert told.claims(shots) == (
        ((0, "scene", "background"), "navy"),
        ((1, "top left", "shape"), "ring"),
        ((1, "top left", "colour"), "red"),
        ((1, "top left", "motion"), "up"),
    )
    assert told.empty(shots) == ((0, "top right"),)
    # Of a picture no times are asked.
    assert parse_image("What is at the top left from 0.0 to 1.0 seconds? Nothing.").empty == ()


def test_a_text_without_questions_stays_as_it_is() -> None:
    text = "A line. \n\n  Another one.\n"
    assert take_answers(text, timed=True) == (text, [])
