"""The reward's formulas and settings."""

import math

import pytest

from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.reward.aggregation import (
    RewardWeights,
    component_weights,
    video_reward,
    weighted_reward,
)
from vcap_jax.reward.config import JudgeConfig, LocalConfig, RewardConfig
from vcap_jax.reward.scores import Scores


def scores(correctness: int, completeness: int, third: int, third_key: str = "Text Quality") -> Scores:
    return Scores(
        analysis="",
        correctness=correctness,
        completeness=completeness,
        third=third,
        third_key=third_key,  # type: ignore[arg-type]
    )


def test_the_papers_weights() -> None:
    weights = RewardWeights()
    assert weighted_reward(scores(9, 7, 3), weights) == pytest.approx(0.05 * 9 + 0.04 * 7 + 0.01 * 3)
    assert weighted_reward(scores(10, 10, 10), weights) == pytest.approx(1.0)
    assert weighted_reward(scores(0, 0, 0), weights) == 0.0


def test_reasonability_takes_the_third_slot_of_a_video() -> None:
    whole, local = scores(8, 6, 4, "Reasonability"), scores(5, 5, 10)
    weights = RewardWeights()
    r_global = 0.05 * 8 + 0.04 * 6 + 0.01 * 4
    assert video_reward(whole, local, weights) == pytest.approx(r_global + 0.1 * (0.25 + 0.2 + 0.1))
    assert video_reward(whole, None, weights) == pytest.approx(r_global)
    assert video_reward(whole, local, RewardWeights(local=0.0)) == pytest.approx(r_global)


@pytest.mark.parametrize("name", ["correctness", "completeness", "text_quality"])
def test_a_zeroed_weight_takes_its_score_out(name: str) -> None:
    weights = RewardWeights(**{name: 0.0})
    low = {"correctness": 5, "completeness": 5, "third": 5}
    high = low | {"third" if name == "text_quality" else name: 10}
    assert weighted_reward(scores(**low), weights) == weighted_reward(scores(**high), weights)


def test_more_is_never_less() -> None:
    weights = RewardWeights()
    for a in range(10):
        for slot in ("correctness", "completeness", "third"):
            base = {"correctness": 4, "completeness": 4, "third": 4} | {slot: a}
            more = base | {slot: a + 1}
            assert weighted_reward(scores(**more), weights) > weighted_reward(scores(**base), weights)


@pytest.mark.parametrize("bad", [{"correctness": -0.1}, {"local": math.nan}, {"text_quality": math.inf}])
def test_weights_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"RewardWeights\n{next(iter(bad))}\n"):
        RewardWeights(**bad)
    with pytest.raises(ValueError, match="would be 0"):
        RewardWeights(correctness=0, completeness=0, text_quality=0)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="nothing to judge by"):
        RewardConfig(use_reference=False, use_image=False)
    with pytest.raises(ValueError, match=r"LocalConfig\nfraction\n"):
        LocalConfig(fraction=0)
    with pytest.raises(ValueError, match=r"JudgeConfig\nurls\n"):
        JudgeConfig(urls=("localhost:8000",))
    with pytest.raises(ValueError, match=r"JudgeConfig\nmax_tries\n"):
        JudgeConfig(max_tries=0)
    assert not RewardConfig(weights=RewardWeights(local=0.0)).local_active
    assert not RewardConfig(local=LocalConfig(enabled=False)).local_active
    assert RewardConfig().local_active


def test_settings_load_from_plain_values() -> None:
    loaded = load_config(
        RewardConfig, [], ["weights.correctness=0", "local.reference=segment", "instructions.image=a.txt"]
    )
    assert loaded.weights.correctness == 0
    assert loaded.local.reference == "segment"
    assert loaded.instructions.image == "a.txt"
    with pytest.raises(ConfigError, match=r"local\.reference"):
        load_config(RewardConfig, [], ["local.reference=half"])
    assert load_config(JudgeConfig, [], ["urls=[https://host/v1]"]).concurrency == 64


def test_the_reward_is_the_weighted_sum_of_its_components() -> None:
    weights = RewardWeights()
    image = component_weights(weights, "image", local=False)
    assert image == {"correctness": 0.05, "completeness": 0.04, "text_quality": 0.01}
    given, near = scores(9, 7, 3, "Reasonability"), scores(4, 5, 6)
    components = {**given.by_name(), **{f"local/{name}": value for name, value in near.by_name().items()}}
    for local in (False, True):
        told = component_weights(weights, "video", local=local)
        total = sum(weight * components[name] for name, weight in told.items())
        assert total == pytest.approx(video_reward(given, near if local else None, weights))
