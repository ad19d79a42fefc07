"""Which samples the page of rewards holds, of as many as come."""

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
from vcap_jax.recipes.score_page import RewardsPage
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
