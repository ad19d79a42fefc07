"""Claims as sentences of their own, and questions to be answered with yes or no."""

from __future__ import annotations

import pytest

from vcap_jax.world.sayable import IMAGE_SLOTS
from vcap_jax.world.statements import read_statement, read_yes_no, statement, yes_no
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
