"""Claims as sentences of their own, and questions to be answered with yes or no."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import full_caption
from vcap_jax.world.slots import IMAGE_SLOTS
from vcap_jax.world.statements import events_of, read_statement, read_yes_no, relation, statement, yes_no
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import VALUES


def test_every_claim_about_an_image_is_a_sentence_that_is_read_back() -> None:
    texts = set()
    for slot in IMAGE_SLOTS:
        for value in VALUES[str(slot[-1])]:
            text = statement(slot, value)
            assert read_statement(text) == (slot, value)
            texts.add(text)
    assert len(texts) == sum(len(VALUES[str(slot[-1])]) for slot in IMAGE_SLOTS)


@pytest.mark.parametrize(
    "text", ["", "At the top left is a red circle.", "It is red.", "There are six objects"]
)
def test_what_is_not_one_claim_is_no_statement(text: str) -> None:
    assert read_statement(text) is None


def test_a_slot_of_a_video_has_no_statement() -> None:
    with pytest.raises(ValueError, match="no slot of an image"):
        statement((0, "top left", "motion"), "left")


@pytest.mark.parametrize("value", ["pans left", "1.0", "top left", "8"])
def test_yes_or_no(value: str) -> None:
    question = "What does the camera do from 0.0 to 2.0 seconds?"
    assert read_yes_no(yes_no(question, value)) == (question, value)
    assert read_yes_no(question) is None


CAPTION = """[0.0 - 2.0] At the top left a red circle moves left. The one at the top left turns green at 1.0 seconds.
[2.0 - 4.0] At the top left a green circle moves right. The camera pans left.
Summary: there are two shots."""


def test_each_sentence_of_a_segment_is_an_event() -> None:
    assert events_of(CAPTION) == [
        "[0.0 - 2.0] At the top left a red circle moves left.",
        "[0.0 - 2.0] The one at the top left turns green at 1.0 seconds.",
        "[2.0 - 4.0] At the top left a green circle moves right.",
        "[2.0 - 4.0] The camera pans left.",
    ]
    assert events_of("Nothing happens. [0.0 - 1.0] It is quiet.") == []


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("[0.0 - 2.0] A red circle moves left at the top left.", "entailment"),
        ("[0.0 - 2.0] The top left one becomes green at 1.0 seconds.", "entailment"),
        ("[0.0 - 2.0] The top left one changes colour.", "entailment"),
        ("[0.0 - 2.0] The top left one disappears at 1.0 seconds.", "contradiction"),
        ("[0.0 - 2.0] The top left one turns green at 1.5 seconds.", "contradiction"),
        ("[2.0 - 4.0] At the top left a red circle moves left.", "contradiction"),  # at another time
        ("[2.0 - 4.0] The camera zooms in.", "contradiction"),
        ("[0.0 - 2.0] The camera pans left.", "neutral"),
        ("[0.0 - 2.0] At the top right a red circle moves left.", "neutral"),
        ("[4.0 - 6.0] At the top left a red circle moves left.", "neutral"),
        ("A red circle moves left at the top left.", "neutral"),
        ("[0.0 - 2.0] Something moves.", "neutral"),
    ],
)
def test_relations(event: str, expected: str) -> None:
    assert relation(CAPTION, event) == expected


def test_a_caption_entails_its_own_events_and_those_in_other_words() -> None:
    for number in range(6):
        scene = sample_video_scene(0, number, "heldout")
        first, second = (full_caption(scene, np.random.default_rng(seed)) for seed in (1, 2))
        assert {relation(second, event) for event in events_of(first)} == {"entailment"}
