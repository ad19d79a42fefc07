"""The page of samples: complete, self-contained, and safe against what captions may hold."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vcap_jax.report.samples import (
    Sample,
    SampleCandidate,
    SampleFact,
    SampleFrame,
    SampleRow,
    SampleRows,
    SamplesWriter,
    picture,
)
from vcap_jax.report.samples_page import spread_over_steps, write_samples_page
from vcap_jax.report.step_log import LogError


def sample(step: int, **changes: object) -> Sample:
    pixels = np.full((96, 96, 3), step, np.uint8)
    candidates = (
        SampleCandidate(
            caption="<script>alert(1)</script> & a red circle",
            reward=0.25,
            full_reward=1.0,
            scores={"correctness": 8, "local/text_quality": 5},
            notes={"The judge's analysis": "O1: supported"},
            facts=(SampleFact(text="top left: colour red", verdict="true"),),
        ),
        SampleCandidate(caption="second", reward=0.75, segment=(0.5, 2.0)),
        SampleCandidate(caption="", reward=None, failure="cut off"),
    )
    content = {"id": f"s{step}", "frames": (picture(pixels),), "candidates": candidates, "reference": "weak"}
    return Sample(step=step, **{**content, **changes})  # type: ignore[arg-type]


def written(folder: Path, *samples: Sample) -> Sequence[SampleRow]:
    path = folder / "samples.jsonl"
    path.unlink(missing_ok=True)
    with closing(SamplesWriter(path)) as writer:
        writer.write(samples)
    return SampleRows(path).update()


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_everything_and_needs_no_other_file(tmp_path: Path) -> None:
    write_samples_page(written(tmp_path, sample(1), sample(2)), tmp_path / "samples.html", title="a run")
    page = Page((tmp_path / "samples.html").read_text())
    assert page.tags.count("article") == 2
    assert page.tags.count("script") == 1  # ours; the caption's is text
    assert "<script>alert(1)</script> & a red circle" in page.text
    for shown in (
        "weak",
        "0.750",
        "cut off",
        "O1: supported",
        "correctness 8",
        "local: text quality 5",
        "The judge's analysis",
        "✓ top left: colour red",
    ):
        assert shown in page.text
    assert "segment 0.5 to 2.0 s" in page.text
    assert page.urls
    assert all(url.startswith("data:image/") for url in page.urls)
    # The best candidate comes first, one without a score last.
    assert page.text.index("second") < page.text.index("alert(1)") < page.text.index("masked")


def test_what_is_shown_again_stands_beside_what_it_was(tmp_path: Path) -> None:
    """With the markup of captions as text, also where a change goes through it."""
    old = SampleCandidate(caption="a <b>red</b> & blue disc", reward=0.25)
    new = SampleCandidate(caption="a <b>green</b> & blue disc <script>alert(2)</script>", reward=None)
    samples = [
        sample(1, id="a", candidates=(old,)),
        sample(1, id="b"),
        sample(2, id="a", candidates=(new,)),
    ]
    write_samples_page(written(tmp_path, *samples), tmp_path / "samples.html", warning="no <good> judge")
    text = (tmp_path / "samples.html").read_text()
    page = Page(text)
    assert "3 groups of 2 samples, 2 steps" in page.text
    assert "no <good> judge" in page.text
    assert page.text.count("Since this sample was first shown") == 1
    assert "a <b>red</b> & blue disc" in page.text
    assert "<del>red</del>" in text
    assert "<ins>green</ins>" in text
    assert page.tags.count("script") == 1
    assert page.tags.count("b") == text.count("<b>") + text.count('<b class="failed">')
    assert "mean reward of the group 0.250 → no score" in page.text
    # Thinned to the last step alone it still knows the first.
    many = [sample(1, id="b"), *(sample(step, id="a") for step in range(2, 41))]
    write_samples_page(written(tmp_path, *many), tmp_path / "samples.html", limit=2)
    assert Page((tmp_path / "samples.html").read_text()).text.count("Since this sample") == 1


def test_a_page_without_samples(tmp_path: Path) -> None:
    write_samples_page([], tmp_path / "samples.html")
    assert "No samples yet" in (tmp_path / "samples.html").read_text()


def test_samples_survive_resumption(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    writer = SamplesWriter(path)
    samples = [sample(1), sample(2), sample(2, id="other")]
    writer.write(samples)
    writer.write([sample(3)])
    assert writer.truncate_after(2) == 1
    rows = SampleRows(path)
    assert [row.read() for row in rows.update()] == samples
    writer.write([sample(4)])
    assert [(row.step, row.id) for row in rows.update()[2:]] == [(2, "other"), (4, "s4")]
    writer.close()
    path.write_text('{"step": 1}\n')
    with pytest.raises(LogError, match="not a sample"):
        SampleRows(path).update()
    with pytest.raises(LogError, match="sample s4 of step 4 is no longer"):
        rows.update()[3].read()


def test_samples_that_the_page_does_not_show_are_not_read_again(tmp_path: Path) -> None:
    """Of a long run of videos they are a gigabyte, and the page is drawn every few steps."""
    rows = written(tmp_path, *(sample(step, id="a") for step in range(1, 41)))
    content = (tmp_path / "samples.jsonl").read_bytes()
    hole = bytes(rows[-1].begin - rows[1].begin)
    (tmp_path / "samples.jsonl").write_bytes(content[: rows[1].begin] + hole + content[rows[-1].begin :])
    write_samples_page(rows, tmp_path / "samples.html", limit=2)
    page = Page((tmp_path / "samples.html").read_text())
    assert "2 groups of 1 samples, 2 steps" in page.text
    assert page.text.count("Since this sample was first shown") == 1


def test_small_pictures_are_exact_and_large_ones_shrink() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 48, 3), np.uint8)
    small = picture(pixels)
    content = base64.b64decode(small.url.partition(",")[2])
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), pixels)
    large = picture(np.zeros((900, 1600, 3), np.uint8))
    assert (large.width, large.height) == (512, 288)
    with pytest.raises(ValueError, match="data URL"):
        SampleFrame(url="/tmp/a.png", width=1, height=1)


def test_many_samples_are_thinned_by_whole_steps() -> None:
    many = [SampleRow(step, str(i), Path("samples.jsonl"), 0) for step in range(1, 41) for i in range(3)]
    kept = spread_over_steps(many, 30)
    steps = sorted({item.step for item in kept})
    assert len(kept) == 3 * len(steps) <= 30
    assert (steps[0], steps[-1]) == (1, 40)
    assert spread_over_steps(many, 120) == many


def test_unsaid_facts_are_counted_and_folded_away(tmp_path: Path) -> None:
    told = SampleFact(text="colour red", verdict="true")
    unsaid = tuple(SampleFact(text=f"fact {k}", verdict="missing") for k in range(3))
    candidates = tuple(
        SampleCandidate(caption="red", reward=0.5, facts=facts)
        for facts in ((told, *unsaid), (told, *unsaid[:1]), unsaid, (told,), ())
    )
    write_samples_page(written(tmp_path, sample(1, candidates=candidates)), tmp_path / "samples.html")
    text = (tmp_path / "samples.html").read_text()
    page = Page(text)
    assert page.tags.count("details") == page.text.count("unsaid") == 3
    assert page.text.count("3 facts unsaid") == 2
    assert "1 fact unsaid" in page.text
    assert page.text.count("∅ fact 2") == 2
    assert page.tags.count("ul") == 6  # told and unsaid apart, and no empty list


def test_long_captions_are_folded_but_for_the_best(tmp_path: Path) -> None:
    best, other = "First word " + "a red circle " * 200, "Other " + "a blue square " * 200
    candidates = (
        SampleCandidate(caption=other, reward=0.2),
        SampleCandidate(caption="short", reward=0.1),
        SampleCandidate(caption=best, reward=0.9),
    )
    write_samples_page(
        written(tmp_path, sample(1, candidates=candidates)), tmp_path / "samples.html", title="run"
    )
    page = (tmp_path / "samples.html").read_text()
    assert page.count('<details class="long"') == 2
    assert page.count('<details class="long" open>') == 1
    assert page.index('class="long" open') < page.index("First word") < page.index("Other")
    assert f'<p class="caption">{other}</p>' in page
    assert "602 words" in page
    assert '<p class="caption">short</p>' in page


def test_a_folded_caption_without_spaces_shows_its_beginning(tmp_path: Path) -> None:
    candidates = (SampleCandidate(caption="左边是一只红色的圆" * 200, reward=0.2),)
    write_samples_page(written(tmp_path, sample(1, candidates=candidates)), tmp_path / "samples.html")
    page = (tmp_path / "samples.html").read_text()
    assert "1800 words<span>左边是一只红色的圆" in page
