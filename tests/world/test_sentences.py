"""Sentences and wordings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from vcap_jax.world.sentences import (
    PLAIN,
    TOPICS,
    Wording,
    draw_wording,
    forms_of,
    read_sentences,
    read_thing,
    say_thing,
    split_sentences,
)
from vcap_jax.world.vocabulary import IMAGE_ATTRIBUTES, VALUES, VIDEO_ATTRIBUTES


def test_sentences_end_at_full_stops_that_are_not_decimal_points() -> None:
    assert split_sentences("There is a cut at 2.0 seconds. A square marked 4. c") == [
        "There is a cut at 2.0 seconds.",
        "A square marked 4.",
        "c",
    ]


def test_a_line_before_a_sentence_does_not_hide_it_and_a_sentence_may_run_over_lines() -> None:
    claims = ((("scene", "background"), "navy"),)
    forms = forms_of({}, [(["the background is navy."], lambda match: claims)])
    told = read_sentences("Caption\nThe background is navy.", forms)
    assert [(sentence.text, bool(sentence.claims)) for sentence in told] == [
        ("Caption", False),
        ("The background is navy.", True),
    ]
    (whole,) = read_sentences("The\nbackground is navy.", forms)
    assert whole.claims == claims


def test_wordings_are_equally_likely_and_kept() -> None:
    rng = np.random.default_rng(0)
    counts = {"a": 0, "b": 0, "c": 0}
    for _ in range(600):
        wording = draw_wording(rng)
        assert wording.of("size", ("a", "b", "c")) == wording.of("size", ("a", "b", "c"))
        counts[wording.of("size", ("a", "b", "c"))] += 1
    assert min(counts.values()) > 150
    assert all(PLAIN.of(topic, ("first", "second")) == "first" for topic in TOPICS)


def test_a_topic_with_a_number_of_wordings_that_would_not_be_equally_likely_is_refused() -> None:
    with pytest.raises(ValueError, match="size has 4 wordings"):
        Wording().of("size", ("a", "b", "c", "d"))


WHOLE = {
    "shape": "arrow",
    "colour": "orange",
    "size": "large",
    "pattern": "striped",
    "direction": "up",
    "mark": "A",
    "inside": "pink",
}


def test_every_combination_of_attributes_can_be_said_in_every_wording() -> None:
    rng = np.random.default_rng(0)
    for count in range(8):
        for chosen in itertools.combinations(WHOLE, count):
            attributes = {key: WHOLE[key] for key in chosen}
            for _ in range(8):
                said = say_thing(attributes, draw_wording(rng))
                assert read_thing(said.lower(), IMAGE_ATTRIBUTES) == attributes, said


@pytest.mark.parametrize("kind", IMAGE_ATTRIBUTES)
def test_every_value_can_be_said(kind: str) -> None:
    rng = np.random.default_rng(1)
    for value in VALUES[kind]:
        for _ in range(8):
            said = say_thing({kind: value}, draw_wording(rng))
            assert read_thing(said.lower(), IMAGE_ATTRIBUTES) == {kind: value}


def test_plain_words() -> None:
    assert (
        say_thing(WHOLE, PLAIN) == "a large striped orange arrow with a pink dot inside pointing up marked A"
    )
    assert say_thing({}, PLAIN) == "an object"
    assert say_thing({"colour": "orange"}, PLAIN) == "an orange object"


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        (
            "a big red striped circle",
            {"size": "large", "pattern": "striped", "colour": "red", "shape": "circle"},
        ),
        ("a checkered object", {"pattern": "checked"}),
        ("a square with an 8 on it", {"shape": "square", "mark": "8"}),
        ("a little ring around a cyan dot", {"size": "small", "shape": "ring", "inside": "cyan"}),
        ("a square marked x with dots", {"shape": "square", "mark": "X", "pattern": "dotted"}),
    ],
)
def test_what_is_understood(text: str, attributes: dict[str, str]) -> None:
    assert read_thing(text, IMAGE_ATTRIBUTES) == attributes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "circle",
        "a red large circle",
        "a red red circle",
        "a striped red circle with stripes",
        "a striped red dotted circle",
        "a red circle marked 4 marked 4",
        "a red circle marked",
        "a red circle marked 3",
        "a red circle pointing up down",
        "a red circle with a pink dot",
        "a red circle  ",
        "a red circles",
        "a navy circle",
    ],
)
def test_what_is_no_noun_phrase(text: str) -> None:
    assert read_thing(text, IMAGE_ATTRIBUTES) is None


def test_attributes_that_a_video_does_not_tell_make_it_none_there() -> None:
    assert read_thing("a large striped red circle", VIDEO_ATTRIBUTES) is None
    assert read_thing("a large red circle", VIDEO_ATTRIBUTES) == {
        "size": "large",
        "colour": "red",
        "shape": "circle",
    }
