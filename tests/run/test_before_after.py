"""The page of held-out samples before and after: its order, and that nothing in a caption runs."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from vcap_jax.data.errors import MediaError
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.judged import REWARD
from vcap_jax.evals.protocol import Item
from vcap_jax.report.intervals import Value
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.samples import SampleCandidate, picture
from vcap_jax.run.before_after import BeforeAfterPage, Pair, write_before_after_page
from vcap_jax.run.config import RunConfig


def test_rewards_that_rounding_alone_tells_apart_are_neither_better_nor_worse(tmp_path: Path) -> None:
    def gone(sample: Sample) -> NoReturn:
        raise MediaError("it was captioned, and is gone since")

    # Scores of 0, 6, 4 and of 4, 1, 4 with the paper's weights; and a gain and a loss of the smallest score.
    one, other = 0.05 * 0 + 0.04 * 6 + 0.01 * 4, 0.05 * 4 + 0.04 * 1 + 0.01 * 4
    assert one != other
    rewards = {"a": (one, other), "b": (other, one), "c": (one, one + 0.01), "d": (one, one - 0.01)}
    sides = [
        [Item(id=name, captions=("x",), values={REWARD: both[side]}) for name, both in rewards.items()]
        for side in (0, 1)
    ]
    own: Any = SimpleNamespace(
        samples=[Sample(id=name, images=(Path("x"),)) for name in rewards],
        references=None,
        media=gone,
        threads=1,
    )
    ctx: Any = SimpleNamespace(config=replace(RunConfig(), name="run"), folder=RunFolder(tmp_path))
    results: Any = SimpleNamespace(step=1, metrics={}, changes={})
    BeforeAfterPage(ctx, own, "judged").draw(*sides, results)
    page = (tmp_path / "before_after.html").read_text()
    assert "1 better, 1 worse, 2 equal by reward" in page
    assert [*map(float, re.findall(r'data-gain="([^"]*)"', page))] == [-0.01, 0, 0, 0.01]


def test_pictures_of_the_page_are_read_by_threads_and_once(tmp_path: Path) -> None:
    """One after the other a hundred videos took minutes, while all accelerators waited."""
    read: list[tuple[str, bool]] = []

    def media(sample: Sample) -> NoReturn:
        read.append((sample.id, threading.current_thread() is threading.main_thread()))
        raise MediaError("what it shows is of no matter here")

    names = ["a", "b", "c"]
    items = [Item(id=name, captions=("x",), values={REWARD: 0.5}) for name in names]
    own: Any = SimpleNamespace(
        samples=[Sample(id=name, images=(Path("x"),)) for name in names],
        references=None,
        media=media,
        threads=2,
    )
    ctx: Any = SimpleNamespace(config=replace(RunConfig(), name="run"), folder=RunFolder(tmp_path))
    page, results = BeforeAfterPage(ctx, own, "judged"), SimpleNamespace(step=1, metrics={}, changes={})
    for _ in range(2):
        page.draw(items, items, results)  # type: ignore[arg-type]
    assert sorted(read) == [(name, False) for name in names]


def value(number: float) -> Value:
    return Value(value=number, low=number - 1, high=number + 1, n=3, method="m")


def pair(name: str, before: float | None, after: float | None, **changes: object) -> Pair:
    return Pair(
        **{
            "id": name,
            "before": SampleCandidate(caption="A red disc <i>.", reward=before, scores={"text_quality": 7.0}),
            "after": SampleCandidate(
                caption="A blue disc <i>.", reward=after, notes={"The judge's analysis": "O1: wrong"}
            ),
            "frames": (picture(np.zeros((8, 8, 3), np.uint8)),),
            "reference": "weak & short",
            **changes,
        }
    )


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
        changes=[("text_quality", value(7.0), value(-0.5))],
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
