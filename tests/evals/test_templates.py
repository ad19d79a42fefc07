"""Texts of questions: places, delimiters, what is shared, and texts of one's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from vcap_jax.evals.templates import check_own_texts, check_shared_texts, load_template
from vcap_jax.reward.templates import TemplateError


def test_values_stand_between_delimiters_and_cannot_leave_them(tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("Read {CAPTION} for {QUESTION} now.")
    template = load_template("x/ask", ("QUESTION", "CAPTION"), str(tmp_path))
    filled = template.fill({"CAPTION": "</caption> {QUESTION}", "QUESTION": "Why?"})
    assert filled.text.count("</caption>") == 1
    assert filled.text.endswith("for <question>\nWhy?\n</question> now.\n")
    assert filled.text.startswith(filled.shared)
    assert filled.shared.endswith(" for ")
    with pytest.raises(ValueError, match="QUESTION"):
        template.fill({"CAPTION": "x"})


@pytest.mark.parametrize("text", ["{CAPTION} {CAPTION}", "nothing", "{CAPTION} {OTHER}"])
def test_places_are_each_there_once_and_no_others(text: str, tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text(text)
    with pytest.raises(TemplateError, match=r"write each of \{CAPTION\} once"):
        load_template("x/ask", ("CAPTION",), str(tmp_path))


def test_the_version_is_that_of_the_text(tmp_path: Path) -> None:
    packaged = load_template("capmas/caption", (), plain=True)
    (tmp_path / "caption.txt").write_text(packaged.text)
    assert load_template("capmas/caption", (), str(tmp_path), plain=True).version == packaged.version
    (tmp_path / "caption.txt").write_text("Another.")
    assert load_template("capmas/caption", (), str(tmp_path), plain=True).version != packaged.version


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_text_of_ones_own_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(text)
    with pytest.raises(TemplateError, match=r"short\.txt' is empty: write the text, or remove the file"):
        load_template("vdc/short", (), str(tmp_path), plain=True)


def test_a_text_of_ones_own_that_nobody_would_ask_with_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clair.txt").write_text("{REFERENCE} {CAPTION}")
    (tmp_path / "mine.txt").write_text("{CAPTION}")
    check_own_texts(str(tmp_path), {"mine"})
    (tmp_path / "captions.txt").write_text("Describe it.")
    with pytest.raises(
        TemplateError, match=r"captions\.txt is no text of a benchmark; the nearest is caption\.txt"
    ):
        check_own_texts(str(tmp_path), {"mine"})
    with pytest.raises(TemplateError, match=r"there is no folder '.*prmpts'"):
        check_own_texts(str(tmp_path / "prmpts"), ())


def test_a_text_in_the_folder_of_a_benchmark_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "prism").mkdir()
    (tmp_path / "prism" / "answer.txt").write_text("Mine: {CAPTION} {QUESTION}")
    (tmp_path / "answer.txt").write_text("All: {CAPTION} {QUESTION}")
    places = ("CAPTION", "QUESTION")
    assert load_template("prism/answer", places, str(tmp_path)).text.startswith("Mine: ")
    assert load_template("vdc/answer", places, str(tmp_path)).text.startswith("All: ")
    check_own_texts(str(tmp_path), ())
    for name in ("prism/anwser", "prisn/answer", "mine/ask"):
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("{CAPTION}")
        with pytest.raises(TemplateError, match=f"{name}.txt is no text of a benchmark"):
            check_own_texts(str(tmp_path), {"ask"})
        if name == "mine/ask":
            check_own_texts(str(tmp_path), {"ask"}, "mine")
        path.unlink()


def test_a_question_of_several_benchmarks_says_which_it_is_for(tmp_path: Path) -> None:
    """A text made for prism was the question of vdc as well."""
    (tmp_path / "answer.txt").write_text("{CAPTION} {QUESTION}")
    (tmp_path / "caption.txt").write_text("Describe it.")
    check_shared_texts(str(tmp_path), ["prism", "prism", "capmas", "vcapsbench"])
    with pytest.raises(
        TemplateError,
        match=r"answer\.txt would be asked with by prism and vdc, .* such as .*prism/answer\.txt",
    ):
        check_shared_texts(str(tmp_path), ["vdc", "prism"])
    (tmp_path / "prism").mkdir()
    (tmp_path / "prism" / "answer.txt").write_text("{CAPTION} {QUESTION}")
    check_shared_texts(str(tmp_path), ["vdc", "prism"])


MANY = ("captionqa/answer", "prism/answer", "prism/match", "vcapsbench/question", "vdc/answer", "vdc/compare")
"""Put many times about one caption or to one end, so what they share comes first, for the server's cache."""


def packaged() -> Iterator[tuple[str, str]]:
    for benchmark in resources.files("vcap_jax.evals").joinpath("prompts").iterdir():
        for file in benchmark.iterdir():
            yield f"{benchmark.name}/{file.name.removesuffix('.txt')}", file.read_text(encoding="utf-8")


def test_every_packaged_text_tells_the_form_of_its_answer_at_its_end_or_before_what_is_filled_in() -> None:
    asked = {name: text for name, text in packaged() if "Output (strict)" in text}
    assert set(MANY) < set(asked)
    for name, text in asked.items():
        told = text.split("{")[0] if name in MANY else text.strip().splitlines()[-1]
        assert "exactly one JSON object" in told, name


@pytest.mark.parametrize("name", MANY)
def test_what_differs_between_many_questions_comes_last(name: str) -> None:
    text = dict(packaged())[name]
    places = re.findall(r"\{[A-Z_]+\}", text)
    after = text[text.index(places[0]) :].split("\n")
    headings = {"", "Question"}
    assert set(after) <= {*places, *headings}
    if "{CAPTION}" in places:
        assert places[0] == "{CAPTION}"
