"""The control: scores that know nothing, and are the same again."""

from __future__ import annotations

import asyncio

import numpy as np

from tests.reward.media import PICTURE
from vcap_jax.reward.config import RewardConfig
from vcap_jax.reward.family import FamilyTools, load_family
from vcap_jax.reward.group import GroupForReward
from vcap_jax.reward.random_scores import RandomReward


def scored(
    step: int, index: int = 0, *, seed: int = 0, captions: tuple[str, ...] = ("a",) * 8
) -> list[float]:
    family = RandomReward(RewardConfig(family="random"), FamilyTools(seed=seed))
    group = GroupForReward(
        sample_id="s", step=step, index=index, media=PICTURE, reference=None, captions=captions
    )
    result = asyncio.run(family.score_group(group))
    assert result.full_reward == 10
    rewards = [candidate.reward for candidate in result.candidates if candidate.reward is not None]
    assert rewards == [candidate.components["random"] for candidate in result.candidates]
    return rewards


def test_scores_depend_on_seed_step_and_group_and_not_on_what_is_said() -> None:
    once = scored(3)
    assert len(set(once)) > 1  # of one text: a group has something to normalise
    assert scored(3, captions=tuple("abcdefgh")) == once
    assert len({tuple(row) for row in (once, scored(4), scored(3, 1), scored(3, seed=1))}) == 4


def test_all_whole_numbers_from_0_to_10_are_equally_probable() -> None:
    values = [value for step in range(1000) for value in scored(step)]
    counts = np.bincount(np.array(values, int), minlength=11)
    assert len(counts) == 11
    expected = len(values) / 11
    assert (
        float(((counts - expected) ** 2 / expected).sum()) < 29.6
    )  # chi-square, 10 degrees of freedom, 0.1%


def test_it_needs_neither_reference_nor_judge() -> None:
    config = RewardConfig(family="random")
    family = load_family(config)
    assert family is RandomReward
    assert not family.uses_reference(config)
    assert not family.asks_judge(config)
