"""The page of held-out samples before and after: what is chosen, in which order, and that nothing in a caption runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vcap_jax.report.before_after import MetricChange, Pair, Side, most_telling, write_before_after_page
from vcap_jax.report.intervals import Value
from vcap_jax.report.samples import picture


def value(number: float) -> Value:
    return Value(value=number, low=number - 1, high=number + 1, n=3, method="m")


def pair(name: str, before: float | None, after: float | None, **changes: object) -> Pair:
    return Pair(
        **{
            "id": name,
            "before": Side(caption="A red disc <i>.", reward=before, scores={"text_quality": 7.0}),
            "after": Side(
                caption="A blue disc <i>.", reward=after, notes={"The judge's analysis": "O1: wrong"}
            ),
            "frames": (picture(np.zeros((8, 8, 3), np.uint8)),),
            "reference": "weak & short",
            **changes,
        }
    )


def test_of_many_samples_the_largest_losses_and_gains_are_shown() -> None:
    gains: dict[str, float | None] = {f"s{i}": float(i) for i in range(-50, 51)}
    gains["masked"] = None
    chosen = most_telling(gains, 10)
    assert chosen == ["s-50", "s-49", "s-48", "s-47", "s-46", "s46", "s47", "s48", "s49", "s50"]
    few = {"a": 0.5, "masked": None, "b": -0.5, "c": 0.0}
    assert most_telling(few, 10) == ["b", "c", "a", "masked"]


def test_the_page_has_losses_first_marks_what_differs_and_needs_no_other_file(tmp_path: Path) -> None:
    pairs = [pair("worse", 0.9, 0.4), pair("better", 0.1, 0.9), pair("masked", None, 0.5)]
    path = tmp_path / "page.html"
    write_before_after_page(
        pairs,
        path,
        title="mine",
        before="before training",
        after="after step 9",
        counts="1 better, 1 worse",
        changes=[MetricChange(name="text_quality", after=value(7.0), change=value(-0.5))],
        of=30,
        warning="These rewards mean nothing here",
    )
    page = path.read_text()
    assert [*re.findall(r'<article id="sample-\d"(?: data-gain="([^"]*)")?>', page)] == ["-0.5", "0.8", ""]
    assert "3 of 30 held-out samples" in page
    assert "<del>red</del> disc" in page
    assert "<ins>blue</ins> disc" in page
    assert "&lt;i&gt;" in page
    assert "<i>" not in page
    assert "1 words gone, 1 new" in page
    assert "weak &amp; short" in page
    assert "<td>-0.5 <span>(-1.5 to +0.5)</span></td>" in page
    assert page.count("These rewards mean nothing here") == 1
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "the largest gains" in page
    assert "the largest losses" in page
    assert page.count('<div class="bars"') == 1


def test_a_page_without_samples_says_so(tmp_path: Path) -> None:
    write_before_after_page(
        [], tmp_path / "page.html", title="t", before="b", after="a", counts="", changes=[], of=0
    )
    assert "No sample was captioned both times." in (tmp_path / "page.html").read_text()


def test_where_nothing_changed_no_changes_are_drawn(tmp_path: Path) -> None:
    pairs = [pair("same", 0.5, 0.5), pair("masked", None, 0.5)]
    write_before_after_page(
        pairs, tmp_path / "page.html", title="t", before="b", after="a", counts="", changes=[], of=2
    )
    page = (tmp_path / "page.html").read_text()
    assert page.count("<article") == 2
    assert '<div class="bars"' not in page
