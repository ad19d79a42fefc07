"""Records: what a row must be, and where a span lies."""

from __future__ import annotations

import pytest

from vcap_jax.human_eval.errors import StudyError
from vcap_jax.human_eval.records import Answer, Rankings, Span, find_span, parse_row

ANSWER = {
    "image_id": "a",
    "model": "base",
    "ref_model": "tuned",
    "prop_id": "a/0",
    "kind": "missing",
    "text": "The door is dented.",
    "step1": "1. consistent",
    "step2": "2. holding",
    "note": "",
    "annotator": "anna",
    "timestamps": {"first": "2026-01-01T00:00:00.000Z", "last": "2026-01-01T00:00:01.000Z"},
}


def test_an_answer_is_written_as_it_was_read():
    answer = parse_row(Answer, ANSWER, "here:1")
    assert parse_row(Answer, answer.model_dump(mode="json"), "here:2") == answer
    assert '"step1": "1. consistent", "step2": "2. holding"' in answer.line()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step2": None}, "needs a step 2"),
        ({"step1": "2. inconsistent"}, "step 2 is open only after"),
        ({"step1": "consistent"}, '"step1"'),
        ({"kind": "absent"}, '"kind"'),
        ({"annotator": " "}, '"annotator"'),
        ({"verdict": "yes"}, '"verdict": is a key that is not known'),
    ],
)
def test_an_answer_against_the_rules_is_refused_in_one_line(change, message):
    with pytest.raises(StudyError, match=message) as caught:
        parse_row(Answer, ANSWER | change, "here:1")
    assert str(caught.value).startswith("here:1: ")
    assert "\n" not in str(caught.value)


def test_rankings_are_three_permutations_of_the_same_models():
    ranks = {"base": 2, "tuned": 1}
    row = {
        "image_id": "a",
        "annotator": "anna",
        "accuracy": ranks,
        "completeness": ranks,
        "granularity": ranks,
    }
    assert parse_row(Rankings, row, "here:1").accuracy == ranks
    for bad in ({"base": 1, "tuned": 1}, {"base": 1, "tuned": 3}, {"base": 1}, {"base": 1, "other": 2}):
        with pytest.raises(StudyError):
            parse_row(Rankings, row | {"granularity": bad}, "here:1")


def test_a_span_is_found_by_code_points_and_by_utf16_units():
    caption = "🚗🚗 a red car"
    assert find_span(caption, 5, 8, "red") == Span(start=5, end=8, text="red")
    assert find_span(caption, 7, 10, "red") == Span(start=5, end=8, text="red")  # each car is two units
    with pytest.raises(StudyError, match="does not stand at"):
        find_span(caption, 4, 7, "red")
    with pytest.raises(StudyError):
        find_span(caption, 1, 2, "🚗 ")  # in the middle of a pair
    for start, end, text in ((-3, 13, "red"), (3, 3, ""), (3, 5, "")):
        with pytest.raises(StudyError, match="is no stretch of a caption"):
            find_span(caption, start, end, text)
    with pytest.raises(ValueError, match="does not hold"):
        Span(start=0, end=4, text="red")
