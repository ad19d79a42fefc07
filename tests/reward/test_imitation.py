"""The imitation family: its scores, its optimum, and that it asks nobody."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.patience import GUARD_S
from vcap_jax.reward.config import ImitationConfig, JudgeConfig, RewardConfig
from vcap_jax.reward.group import GroupForReward, GroupScores
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.store import StoreError, read_candidates
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.facts import count_facts
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import Scene


@cache
def scenes() -> list[Scene]:
    """40 of them; drawn by the first test that asks."""
    return [sample_image_scene(3, index) for index in range(40)]


@cache
def weak() -> dict[str, tuple[str, ...]]:
    """A caption of each, by its sample."""
    rng = np.random.default_rng(3)
    return {f"s{index}": (weak_caption(scene, rng),) for index, scene in enumerate(scenes())}


def score(groups: list[GroupForReward], store: Path | None = None, **imitation: float) -> list[GroupScores]:
    config = RewardConfig(family="imitation", imitation=ImitationConfig(**imitation))
    judge = JudgeConfig(store=None if store is None else str(store))
    with RewardSession(config, judge, seed=0, references=weak()) as session:
        assert not session.asks_judge
        assert session.wait_until_ready() is None
        results = [session.submit(group).result(GUARD_S) for group in groups]
        assert session.statistics().requests == 0
        return results


def group(number: int, captions: list[str], **changes: Any) -> GroupForReward:
    (reference,) = weak()[f"s{number}"]
    media: Any = None  # nothing is looked at
    given = {
        "sample_id": f"s{number}",
        "step": 0,
        "index": number,
        "media": media,
        "reference": reference,
        **changes,
    }
    return GroupForReward(captions=tuple(captions), **given)


def test_the_reference_itself_earns_most_and_the_whole_truth_less() -> None:
    """The optimum is c = m, with the reference's own errors: more true facts lower the reward."""
    rng = np.random.default_rng(0)
    groups = [
        group(n, [weak()[f"s{n}"][0], full_caption(scene, rng), "", "A cat."])
        for n, scene in enumerate(scenes())
    ]
    results = score(groups, cider=0.1, bleu=0.0)
    told_more = 0
    for n, result in enumerate(results):
        mine, truth, nothing, cat = (r for r in result.rewards if r is not None)
        assert mine == pytest.approx(result.full_reward, abs=1e-9)
        assert nothing == 0
        assert cat < 0.05
        counts = [count_facts(scenes()[n], text) for text in groups[n].captions[:2]]
        if counts[1].correct > counts[0].correct:
            told_more += 1
            assert truth < mine
    assert told_more > 30


def test_components_weights_and_other_references() -> None:
    first, second = "At the top left is a red circle.", "A red circle is at the top left."
    alone = group(0, [first], reference=first)
    both = group(0, [first], reference=first, references=(first, second))
    cider, bleu = score([alone], cider=1.0)[0], score([alone], cider=0.0, bleu=1.0)[0]
    assert cider.candidates[0].components == bleu.candidates[0].components
    assert bleu.rewards[0] == pytest.approx(10)
    assert bleu.candidates[0].components["bleu"] == pytest.approx(10)
    assert cider.rewards[0] == cider.candidates[0].components["cider"]
    # CIDEr is the mean over references, BLEU takes the best match of each n-gram.
    (shared,) = score([both], cider=1.0)
    assert shared.rewards[0] is not None
    assert cider.rewards[0] is not None
    assert shared.rewards[0] < cider.rewards[0]
    assert shared.candidates[0].components["bleu"] == pytest.approx(10)
    assert shared.full_reward is None


def test_what_cannot_be_compared_is_masked_or_refused(tmp_path: Path) -> None:
    blank, fine = score([group(0, ["a", "b"], reference=" "), group(1, ["a"])], tmp_path / "s")
    assert [c.failure.reason for c in blank.candidates if c.failure] == ["no_reference"] * 2
    assert fine.rewards == [0.0]
    with pytest.raises(ValueError, match="'s0' has no reference caption"):
        score([group(0, ["a"], reference=None)])
    kept = {(c.sample_id, c.index): c for c, _ in read_candidates(tmp_path / "s")}
    assert kept["s0", 1].reward is None
    assert kept["s1", 0].family == "imitation"
    assert set(kept["s1", 0].components) == {"cider", "bleu"}
    with (
        pytest.raises(ValueError, match="two samples at least"),
        RewardSession(RewardConfig(family="imitation"), JudgeConfig(), seed=0, references={"a": ("x",)}),
    ):
        pass
    (tmp_path / "bad").write_text("no store " * 99)
    with pytest.raises(StoreError):
        score([], tmp_path / "bad")


@pytest.mark.parametrize("bad", [{"cider": -1.0}, {"bleu": float("nan")}, {"cider": 0.0, "bleu": 0.0}])
def test_weights_that_make_no_sense_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"ImitationConfig\n.*{next(iter(bad))}"):
        ImitationConfig(**bad)
