"""Answers of judges: what fits a shape, what does not, and that nothing else is taken for an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import Field

from vcap_jax.evals.answers import Answered, Digit, Sentences, chosen, read_answer, typed, word
from vcap_jax.reward.failures import Failure
from vcap_jax.system.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class Graded:
    reason: str | None
    score: Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True, kw_only=True)
class Fact:
    fact: str
    relevance: Literal[0, 1]


@dataclass(frozen=True, kw_only=True)
class Facts:
    facts: list[Fact]


def reason_of(found: object) -> str:
    assert isinstance(found, Failure), found
    return found.reason


def test_an_answer_is_typed_and_kept_as_it_came() -> None:
    found = read_answer('Well: ```json\n{"score": 40, "reason": null, "more": 1}\n```', "stop", typed(Graded))
    assert found == Answered(row={"reason": None, "score": 40}, value=Graded(reason=None, score=40))
    nested = read_answer('{"facts": [{"fact": "a", "relevance": 1}]}', None, typed(Facts))
    assert isinstance(nested, Answered)
    assert nested.value == Facts(facts=[Fact(fact="a", relevance=1)])


def test_every_object_of_a_schema_is_closed() -> None:
    found: list[JsonObject] = []

    def look(value: object) -> None:
        if isinstance(value, dict):
            found.extend([value] if value.get("type") == "object" else [])
            for below in value.values():
                look(below)

    look(typed(Facts).schema)
    assert [one["additionalProperties"] for one in found] == [False, False]


@pytest.mark.parametrize(
    ("text", "finish", "reason"),
    [
        ('{"reason": "x", "score": 101}', "stop", "bad_answer"),
        ('{"reason": "x", "score": "high"}', "stop", "bad_answer"),
        ('{"reason": "x"}', "stop", "missing_key"),
        ('{"score": 1, "score": 2, "reason": ""}', "stop", "repeated_key"),
        ('{"score": 1, "reason": ""} or {"score": 2, "reason": ""}', "stop", "ambiguous"),
        ("I would say 95.", "stop", "no_verdict"),
        ('{"score": 1, "reason": ""}', "length", "cut_off"),
        ("", "stop", "empty_answer"),
        (None, "content_filter", "filtered"),
    ],
)
def test_what_does_not_fit_is_a_failure(text: str | None, finish: str, reason: str) -> None:
    assert reason_of(read_answer(text, finish, typed(Graded))) == reason


@dataclass(frozen=True, kw_only=True)
class Kept:
    keep: bool | None
    number: int


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        (Graded, '{"reason": null, "score": true}', "score is no number in "),
        (
            Facts,
            '{"facts": [{"fact": "a", "relevance": 1}, {"fact": "b", "relevance": false}]}',
            "facts.1.relevance is no number in ",
        ),
        (Kept, '{"keep": true, "number": true}', "number is no number in "),
    ],
)
def test_true_and_false_are_no_numbers(kind: type[object], text: str, wrong: str) -> None:
    """Python takes them for 1 and 0: a CLAIR score of 1 of 100, a fact that describes what is seen."""
    found = read_answer(text, "stop", typed(kind))
    assert isinstance(found, Failure), found
    assert found.reason == "bad_answer"
    assert found.detail.startswith(wrong)


def test_true_and_false_are_read_where_they_are_asked_for() -> None:
    found = read_answer('{"keep": false, "number": 2}', "stop", typed(Kept))
    assert isinstance(found, Answered)
    assert found.value == Kept(keep=False, number=2)


def test_a_check_of_ones_own_refuses_with_its_words() -> None:
    shape = typed(Graded, lambda graded: "too round" if graded.score == 50 else None)
    found = read_answer('{"reason": null, "score": 50}', "stop", shape)
    assert isinstance(found, Failure)
    assert found.detail.startswith("too round in ")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *(("B", "B"), ("b", "B"), ("(b)", "B"), ("B) two", "B"), (" B. ", "B"), ("?", "?")),
        *(("**B**", "B"), ("B. two", "B"), ("b: two", "B"), ("(B) A. two", "B")),
        *(("`B`", "B"), ("'B'", "B"), ("(`b`)", "B"), ("“B”.", "B"), ("**B) two**", "B"), ("'?'", "?")),
        *(("Option B", "B"), ("**option (B)**", "B"), ("Option B: two", "B")),
    ],
)
def test_a_letter_is_read_whatever_stands_around_it(said: str, meant: str) -> None:
    shape = chosen({"Q1": ("A", "B", "?")})
    found = read_answer(f'{{"Q1": "{said}"}}', "stop", shape)
    assert isinstance(found, Answered)
    assert found.value == {"Q1": meant}


def test_words_that_are_no_option_fail_and_true_is_a_word_too() -> None:
    shape = chosen({"P1": ("true", "false")})
    assert reason_of(read_answer('{"P1": "perhaps"}', "stop", shape)) == "bad_answer"
    assert reason_of(read_answer('{"P1": 1}', "stop", shape)) == "bad_answer"
    found = read_answer('{"P1": true}', "stop", shape)
    assert isinstance(found, Answered)
    assert found.value == {"P1": "true"}


@pytest.mark.parametrize(
    "said", ["A or B", "Option A or B", "`A` `B`", "option", "Options: A", "B, not A", ""]
)
def test_what_may_mean_another_letter_fails(said: str) -> None:
    shape = chosen({"Q1": ("A", "B", "?")})
    assert reason_of(read_answer(f'{{"Q1": "{said}"}}', "stop", shape)) == "bad_answer"


@dataclass(frozen=True, kw_only=True)
class Told:
    answer: Annotated[Literal["Yes", "No", "Unanswerable"], word(str.capitalize)]
    digit: Digit = 0


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *(
            ("YES", "Yes"),
            (" no. ", "No"),
            ("**Yes**", "Yes"),
            ("`No`", "No"),
            ("'Unanswerable'", "Unanswerable"),
        ),
        *(("Yes, it is", "Yes"), ("**No**, there is none.", "No"), ("No. No dog is there", "No")),
        *(("Yes, the caption says so", "Yes"), ("Yes! It is known.", "Yes")),
        *(("Yes, no dog is there", None), ("No: unanswerable", None), ("No, it is not mentioned", None)),
        *(("No, the caption does not say", None), ("Yes and no", None), ("Yes it is", None), ("Nope", None)),
        *(("Not sure", None), ("Yes/No", None), ("It is: yes", None), ("", None)),
    ],
)
def test_a_word_is_read_where_an_answer_begins_with_it_and_says_nothing_else(
    said: str, meant: str | None
) -> None:
    found = read_answer(json.dumps({"answer": said, "digit": 1}), "stop", typed(Told))
    assert meant == (found.value.answer if isinstance(found, Answered) else None)


@pytest.mark.parametrize(
    ("said", "meant"), [("1", 1), ("'0'", 0), (1, 1), (1.0, 1), ("2", None), (True, None)]
)
def test_a_number_may_be_a_digit_in_quotes(said: object, meant: int | None) -> None:
    found = read_answer(json.dumps({"answer": "Yes", "digit": said}), "stop", typed(Told))
    assert meant == (found.value.digit if isinstance(found, Answered) else None)


@pytest.mark.parametrize("said", ['"1"', "1", "1.0"])
def test_a_digit_may_be_a_number(said: str) -> None:
    shape = chosen({"P1": ("1", "0")})
    found = read_answer(f'{{"P1": {said}}}', "stop", shape)
    assert isinstance(found, Answered)
    assert found.value == {"P1": "1"}
    assert reason_of(read_answer('{"P1": true}', "stop", shape)) == "bad_answer"
    assert reason_of(read_answer('{"P1": "1.5"}', "stop", shape)) == "bad_answer"
    assert reason_of(read_answer('{"P1": 0.5}', "stop", shape)) == "bad_answer"


def test_a_schema_of_many_words_leaves_them_to_the_reader() -> None:
    few, many = (chosen({f"P{k}": tuple(map(str, range(60))) for k in range(n)}) for n in (2, 20))
    assert "enum" in few.text
    assert "enum" not in many.text
    row = ", ".join(f'"P{k}": "60"' for k in range(20))
    assert reason_of(read_answer(f"{{{row}}}", "stop", many)) == "bad_answer"


def test_half_a_character_in_an_answer_reaches_no_file() -> None:
    found = read_answer(r'{"facts": [{"fact": "so happy \ud83d", "relevance": 1}]}', None, typed(Facts))
    assert isinstance(found, Answered)
    assert found.row == {"facts": [{"fact": "so happy ?", "relevance": 1}]}
    assert found.value.facts[0].fact == "so happy ?"


def test_a_text_of_a_few_sentences_is_bounded_for_servers_and_taken_as_it_comes() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Told:
        why: Sentences | None

    shape = typed(Told)
    assert "'maxLength': 1000" in str(shape.schema)
    long = "so it is " * 200
    read = read_answer(json.dumps({"why": long}), "stop", shape)
    assert isinstance(read, Answered)
    assert read.value.why == long
