"""Texts of questions: places, delimiters, what is shared, and texts of one's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from vcap_jax.evals.templates import load_template
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


def test_every_packaged_text_ends_with_the_form_of_its_answer() -> None:
    folder = resources.files("vcap_jax.evals").joinpath("prompts")
    for benchmark in ("capmas", "decapbench", "vcapsbench"):
        for file in folder.joinpath(benchmark).iterdir():
            text = file.read_text(encoding="utf-8")
            assert file.name.startswith("caption") or "exactly one JSON object" in text.splitlines()[-1]
