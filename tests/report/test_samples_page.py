"""The page of rewards: its order, what is not scored, and that nothing in a caption runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vcap_jax.report.intervals import Value
from vcap_jax.report.samples import SampleCandidate, picture
from vcap_jax.report.samples_page import RewardedSample, most_telling, write_rewards_page

NAN = float("nan")
METRICS = {
    "text_quality": Value(value=7.0, low=6.0, high=8.0, n=3, method="m"),
    "hallucination": Value(value=NAN, low=NAN, high=NAN, n=0, method="m"),
}


def test_the_page_shows_scores_and_failures_and_needs_no_other_file(tmp_path: Path) -> None:
    good = SampleCandidate(
        caption="A red disc <i>.",
        reward=0.9,
        full_reward=1.0,
        scores={"text_quality": 7.0},
        notes={"The judge's analysis": "O1: right"},
    )
    lost = SampleCandidate(caption="", reward=None, failure="schema: no JSON")
    frames = (picture(np.zeros((8, 8, 3), np.uint8)),)
    shown = [
        RewardedSample(
            id="both", reward=0.9, candidates=(good, lost), frames=frames, reference="weak & short"
        ),
        RewardedSample(id="neither", reward=None, candidates=(lost,)),
    ]
    path = tmp_path / "page.html"
    write_rewards_page(shown, path, title="mine", metrics=METRICS, of=30, warning="They mean nothing here")
    page = path.read_text()
    assert re.findall(r"<article( data-reward=\"0.9\")?>", page) == [' data-reward="0.9"', ""]
    assert "2 of 30 samples" in page
    assert "A red disc &lt;i&gt;." in page
    assert "weak &amp; short" in page
    assert "text quality 7" in page
    assert "O1: right" in page
    assert page.count("schema: no JSON") == 2
    assert "no score</b> · neither" in page
    assert "<td>6 to 8</td>" in page
    assert "<td>–</td><td>– to –</td><td>0</td>" in page
    assert page.count("They mean nothing here") == 1
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)


def test_a_page_without_captions_says_so(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_rewards_page([], path, title="t", metrics={}, of=0)
    assert "No captions." in path.read_text()


def test_of_many_samples_the_largest_losses_and_gains_are_shown() -> None:
    gains: dict[str, float | None] = {f"s{i}": float(i) for i in range(-50, 51)}
    gains["masked"] = None
    chosen = most_telling(gains, 10)
    assert chosen == ["s-50", "s-49", "s-48", "s-47", "s-46", "s46", "s47", "s48", "s49", "s50"]
    few = {"a": 0.5, "masked": None, "b": -0.5, "c": 0.0}
    assert most_telling(few, 10) == ["b", "c", "a", "masked"]
