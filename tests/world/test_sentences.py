"""Sentences and wordings."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.sentences import (
    PLAIN,
    TOPICS,
    Wording,
    draw_wording,
    forms_of,
    read_sentences,
    split_sentences,
)


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
