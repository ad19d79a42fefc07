"""All pages have one frame and one style sheet, and need no other file."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest

import vcap_jax
from vcap_jax.report.pages import page_templates, text_table

ROOT = Path(vcap_jax.__file__).parent
# The annotation application is served with a style sheet of its own; the page of the reproduction is printed as well,
# and has its own.
ELSEWHERE = ("application", "studies")
PAGES = sorted(
    path
    for path in ROOT.rglob("templates/*.html")
    if path.name not in ("page.html", "macros.html")
    and not set(ELSEWHERE) & set(path.relative_to(ROOT).parts)
)


def test_there_are_pages() -> None:
    assert {page.name for page in PAGES} >= {"samples.html", "captions.html", "worst.html", "agreement.html"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_extends_the_one_frame_and_has_no_colours_of_its_own(page: Path) -> None:
    text = page.read_text()
    assert text.startswith('{% extends "page.html" %}')
    own = re.findall(
        r"#[0-9a-fA-F]{3,6}\b", "".join(re.findall(r"block style %}(.*?){% endblock", text, re.S))
    )
    assert set(own) <= {"#fff"}, "white paper for a plot"
    assert "{% block body %}" in text
    assert "<style" not in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_colours_that_there_are(page: Path) -> None:
    style = (ROOT / "report" / "templates" / "page.css").read_text()
    defined = set(re.findall(r"(--[a-z-]+):", style + page.read_text()))
    assert set(re.findall(r"var\((--[a-z-]+)\)", style + page.read_text())) <= defined


def test_the_frame_loads_nothing_and_escapes() -> None:
    environment = page_templates("vcap_jax.report")
    page = environment.from_string('{% extends "page.html" %}{% block body %}{{ said }}{% endblock %}')
    text = page.render(title="<mine>", said="<script>alert(1)</script>")
    assert "<title>&lt;mine&gt;</title>" in text
    assert "<script" not in text
    assert not re.search(r"""(?:src|href|url|@import)\s*[=(]""", text)
    with pytest.raises(jinja2.UndefinedError, match="said"):
        page.render(title="t")


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [["", "start", "now"], ["F1", "0.5", "12.25"]]
    assert text_table(rows, numbers=False).splitlines() == ["    start  now", "F1  0.5    12.25"]
    assert text_table(rows, numbers=True).splitlines() == ["    start    now", "F1    0.5  12.25"]
