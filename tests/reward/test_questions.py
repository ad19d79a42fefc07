"""Questions: their file, and when an answer is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from vcap_jax.data.errors import ManifestError
from vcap_jax.reward.questions import UNKNOWN, Question, question_lines, read_questions

COLOUR = Question(text="What colour?", options=("red", "blue", "a"), answer="blue")
COUNT = Question(text="How many?", answer="The three dogs")


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    questions = {"b": (COLOUR, COUNT), "a": (COUNT,)}
    (tmp_path / "q.jsonl").write_text(question_lines(questions))
    assert read_questions(tmp_path / "q.jsonl") == questions


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        *[(text, "B") for text in ("B", " b ", "(B)", "B.", "B) blue", "blue", "BLUE", "(b) Blue")],
        ("a", "C"),  # an option's own text comes before a small letter
        ("A", "A"),
        ("?", UNKNOWN),
        ("B: it is blue", "B"),
        *[(text, None) for text in ("D", "blueish", "", "BA", "red or blue")],
        *[
            (text, None) for text in ("a blue car", "A bit of blue", "b red")
        ],  # an article, or two answers at once
    ],
)
def test_letters_of_options(said: str, letter: str | None) -> None:
    assert COLOUR.accepted(said) == letter
    if letter is not None:
        assert COLOUR.right(letter) == (letter == "B")


@pytest.mark.parametrize(
    ("said", "letter"), [("A", "A"), (" B ", "B"), ("C", "C"), ("a", "B"), ("b", "A"), ("(A)", "A")]
)
def test_a_letter_is_one_though_another_option_has_it_as_its_text(said: str, letter: str) -> None:
    sign = Question(text="Which letter stands on the sign?", options=("B", "A", "C"), answer="B")
    assert sign.accepted(said) == letter
    assert sign.right(letter) == (letter == "A")


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("three dogs", True),
        ("Three dogs!", True),
        ("the three  dogs.", True),
        ("3 dogs", False),
        ("?", False),
    ],
)
def test_words_without_options(said: str, right: bool) -> None:
    answer = COUNT.accepted(said)
    assert answer is not None
    assert COUNT.right(answer) == right


@pytest.mark.parametrize(
    ("said", "answer", "right"),
    [
        ("-3", "3", False),
        ("\u22123 degrees", "-3 degrees", True),
        (">5", "<5", False),
        ("5", "< 5", False),
        ("<5", "< 5", True),
        ("C", "C++", False),
        ("C#", "C++", False),
        ("c++.", "C++", True),
        ("the C#", "C#", True),
        ("C+ or so", "C++ or so", False),
        ("A+", "A", False),
        ("A+", "+", False),
        ("red+blue", "red, blue", True),
        ("5 >= 3", "5 > 3", False),
        ("1,5", "15", False),
        ("1000", "1,000", True),
        ("1,000,000 people", "1000000 people", True),
        ("3, 4", "3 4", True),
        ("10-30", "10 30", True),
        ("F-16", "F16", False),
        ("F-16", "F 16", True),
        ("No. #1", "no 1", True),
        ("-- three", "three", True),
        ("0.5", "5", False),
        ("50%", "50", True),
    ],
)
def test_signs_that_make_another_number_or_name_count(said: str, answer: str, right: bool) -> None:
    asked = Question(text="What?", answer=answer)
    assert asked.right(said) == right
    assert Question(text="What?", answer=said).right(answer) == right


@pytest.mark.parametrize("answer", ["A", "the", "+", "?!"])
def test_no_answer_is_not_right_where_the_answer_is_hardly_a_word(answer: str) -> None:
    sign = Question(text="What stands on the sign?", answer=answer)
    assert not sign.right(UNKNOWN)
    assert not sign.right("an" if answer != "+" else "-")
    assert sign.right(f" {answer.lower()} ".strip())


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "What?", "answer": "x"}, '"id" must be a text'),
        ({"id": "a", "question": "What?", "anwser": "x"}, 'unknown key "anwser"; the nearest is "answer"'),
        ({"id": "a", "question": "What?", "answer": "x", "choices": ["x", "y"]}, 'is called "options" here'),
        ({"id": "a", "question": "What?", "answer": 3}, '"answer" must be a text'),
        ({"id": "a", "question": "What?", "answer": None}, '"answer" must be a text'),
        ({"id": "a", "question": " ", "answer": "x"}, "must have text"),
        ({"id": "a", "question": "What?", "answer": "x", "options": ["y", "z"]}, "must be one of"),
        ({"id": "a", "question": "What?", "answer": "x", "options": ["x"]}, "two or more"),
        ({"id": "a", "question": "What?", "answer": "x", "options": ["x", "x"]}, "different options"),
        ({"id": "a", "question": "What?", "answer": "x", "options": "xy"}, "options"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    good = {"id": "a", "question": "What?", "answer": "x"}
    (tmp_path / "q.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ManifestError, match=rf"q\.jsonl:2: .*{problem}"):
        read_questions(tmp_path / "q.jsonl")


def test_a_key_whose_value_is_null_is_absent(tmp_path: Path) -> None:
    row = {"id": "a", "question": "What?", "answer": "x", "options": None, "choices": None}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    assert read_questions(tmp_path / "q.jsonl") == {"a": (Question(text="What?", answer="x"),)}


def test_no_questions_at_all(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text("\n")
    with pytest.raises(ManifestError, match="is empty"):
        read_questions(tmp_path / "q.jsonl")
    with pytest.raises(ManifestError, match="does not exist"):
        read_questions(tmp_path / "absent")
