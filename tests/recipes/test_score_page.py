"""The page of rewards: which samples it holds, of as many as come, its order, and that nothing in a caption runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.manifest import Sample
from vcap_jax.evals.judged import judged_item
from vcap_jax.evals.protocol import Captions, OwnData
from vcap_jax.evals.scoring import Scored
from vcap_jax.recipes.score_page import RewardedSample, RewardsPage, write_rewards_page
from vcap_jax.report.intervals import Value
from vcap_jax.report.samples import SampleCandidate, picture
from vcap_jax.reward.group import CandidateScore, GroupScores
from vcap_jax.reward.session import RewardSession
from vcap_jax.system.errors import VCapError


def gone(sample: Sample) -> EncodedMedia:
    raise VCapError(f"{sample.id}: gone")


@pytest.mark.parametrize("seed", range(3))
def test_of_many_samples_it_holds_the_lowest_and_the_highest(tmp_path: Path, seed: int) -> None:
    rewards = np.random.default_rng(seed).permutation(200) / 200
    names = [f"s{i}" for i in range(len(rewards))]
    own = OwnData(
        samples=tuple(Sample(id=name, images=(Path(f"{name}.png"),)) for name in names),
        references=None,
        session=cast(RewardSession, None),
        media=gone,
        seed=0,
        stop=lambda: False,
    )
    page = RewardsPage(own, most=6)
    for name, reward in zip(names, rewards, strict=True):
        scores = GroupScores(sample_id=name, step=0, candidates=(CandidateScore(reward=float(reward)),))
        one = Scored(captions=Captions(id=name, texts=("a disc",)), scores=scores)
        page.add(one, judged_item(one))
    path = tmp_path / "page.html"
    page.draw(path, title="t", metrics={}, warning=None)
    text = path.read_text()
    found = [float(reward) for reward in re.findall(r'data-reward="([^"]*)"', text)]
    assert found == sorted(rewards)[:3] + sorted(rewards)[-3:]
    assert "6 of 200 samples" in text


METRICS = {"text_quality": Value(value=7.0, low=6.0, high=8.0, n=3, method="m")}


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
    assert page.count("They mean nothing here") == 1
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)


def test_a_page_without_captions_says_so(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_rewards_page([], path, title="t", metrics={}, of=0)
    assert "No captions." in path.read_text()
