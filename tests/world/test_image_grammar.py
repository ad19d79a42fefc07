"""Captions of images: said and read back, and what claims nothing."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import sayable_facts
from vcap_jax.world.image_grammar import describe_image, parse_image, say_image
from vcap_jax.world.sentences import PLAIN, draw_wording
from vcap_jax.world.slots import IMAGE_SLOTS
from vcap_jax.world.vocabulary import BACKGROUND, LIGHT, OBJECTS, VALUES, Claim, Facts


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_a_caption_claims_exactly_what_was_to_be_said(share: float) -> None:
    rng = np.random.default_rng(round(100 * share))
    for _ in range(60):
        facts = sayable_facts(IMAGE_SLOTS, share, rng)
        caption = describe_image(facts, rng)
        parsed = parse_image(caption)
        assert dict(parsed.claims) == facts
        assert len(parsed.claims) == len(facts)
        assert all(sentence.claims for sentence in parsed.sentences)


def test_every_slot_can_be_said_with_every_value_in_every_wording() -> None:
    rng = np.random.default_rng(5)
    for slot in IMAGE_SLOTS:
        for value in VALUES[str(slot[-1])]:
            for _ in range(2):
                (sentence,) = say_image({slot: value}, draw_wording(rng))
                assert parse_image(sentence).claims == ((slot, value),), sentence


def test_one_wording_is_kept_through_a_caption() -> None:
    facts: Facts = {(place, "size"): "small" for place in ("top left", "top center", "bottom right")}
    for seed in range(20):
        caption = describe_image(facts, np.random.default_rng(seed)).lower()
        assert {caption.count("small"), caption.count("little")} == {0, 3}
        assert {caption.count(" is "), caption.count(" shows ")} <= {0, 3}


def test_the_plain_words_in_their_order() -> None:
    facts: Facts = {
        BACKGROUND: "gray",
        LIGHT: "above",
        ("scene", "cross", "count"): "two",
        OBJECTS: "six",
        ("middle left", "top left", "overlap"): "covers",
        ("top left", "middle left", "side"): "further left",
        ("top left", "top center", "level"): "higher",
        ("top center", "shape"): "cross",
        ("top left", "mark"): "4",
        ("top left", "colour"): "red",
    }
    assert say_image(facts, PLAIN) == [
        "at the top left is a red object marked 4.",
        "at the top center is a cross.",
        "the one at the top left is higher than the one at the top center.",
        "the one at the top left is further left than the one at the middle left.",
        "the one at the middle left covers part of the one at the top left.",
        "there are six objects.",
        "two of them are crosses.",
        "the light comes from above.",
        "the background is gray.",
    ]


LEVEL = (("top left", "top center", "level"), "higher")


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("A red object is at the top left.", [(("top left", "colour"), "red")]),
        ("There is a star at the middle center.", [(("middle center", "shape"), "star")]),
        ("the scene has a grey background.", [(BACKGROUND, "gray")]),
        ("The top left one is higher than the object at the top center.", [LEVEL]),
        ("The one at the top center is lower than the top left one.", [LEVEL]),
        (
            "The one at the middle left lies farther to the right than the one at the top left.",
            [(("top left", "middle left", "side"), "further left")],
        ),
        (
            "The one at the top left is partly covered by the one at the middle center.",
            [(("middle center", "top left", "overlap"), "covers")],
        ),
        ("There are 6 objects.", [(OBJECTS, "six")]),
        ("There are three arrows.", [(("scene", "arrow", "count"), "three")]),
        ("Light falls from the left.", [(LIGHT, "left")]),
        (
            "The top left shows a square\nmarked T.",
            [(("top left", "shape"), "square"), (("top left", "mark"), "T")],
        ),
    ],
)
def test_what_is_understood(text: str, claims: list[Claim]) -> None:
    assert list(parse_image(text).claims) == claims


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "   \n ",
        "At the top left is a large red circle",  # no full stop: cut off
        "At the top left is a large red red circle.",
        "At the top left left is a large red circle.",
        "At the top left is not a large red circle.",
        "At the top left is a red large circle.",
        "A circle.",
        "An object is at the top left.",
        "At the top left is a red circle and at the top right is a blue star.",
        "At the top left is a red or blue circle.",
        "The background is red.",
        "The background is navy or black.",
        "[0.0 - 2.0] At the top left is a red circle.",
        "All elements have been described.",
        "At the top left is a red circle?",
        "The one at the top left is higher than the one at the bottom left.",  # no neighbours of a row
        "The one at the top left is higher than the one at the top left.",
        "The one at the top left covers part of the one at the top left.",
        "The one at the top left one covers part of the top center one.",
        "The top left covers part of the top center one.",
        "There are many objects.",
        "One of them is a circle.",
        "The light comes from left.",
        "The camera pans left.",
        "\x00\ud800<|im_end|> ... .. . !!",
    ],
)
def test_what_is_not_a_whole_sentence_of_the_grammar_claims_nothing(junk: str) -> None:
    assert parse_image(junk).claims == ()


def test_junk_around_a_sentence_does_not_hide_it_and_repetition_adds_nothing() -> None:
    text = "Look! At the top left is a red circle. The top left shows a red circle. and a blue"
    assert parse_image(text).claims == ((("top left", "shape"), "circle"), (("top left", "colour"), "red"))


def test_each_of_several_values_for_a_slot_is_a_claim() -> None:
    text = " ".join(f"At the top left is a {colour} object." for colour in ("red", "blue", "red"))
    assert parse_image(text).claims == ((("top left", "colour"), "red"), (("top left", "colour"), "blue"))


def test_cut_captions_never_yield_a_claim_that_no_sentence_makes() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        caption = describe_image(sayable_facts(IMAGE_SLOTS, 0.2, rng), rng)
        allowed = set(parse_image(caption).claims)
        assert set(parse_image(caption[: int(rng.integers(len(caption)))]).claims) <= allowed


def test_a_long_text_is_read_in_time_linear_in_it() -> None:
    """Backtracking in a sentence without an end would take minutes."""
    for text in ("a red " * 100_000, "at the top left is a " * 30_000, "the " * 100_000 + "."):
        assert parse_image(text).claims == ()


def test_a_slot_that_images_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\('top left', 'motion'\) is no slot of an image"):
        describe_image({("top left", "motion"): "left"}, np.random.default_rng(0))
