"""Ablations and on-policy updates: one file each, over any whole configuration, changing what its name says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vcap_jax.configuration import ConfigError, load_config, plain
from vcap_jax.run.config import RunConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
BASES = [f"{family}/{modality}" for family in ("embedded", "paper") for modality in ("image", "video")]

ABLATIONS: dict[str, dict[str, Any]] = {
    "no_reference": {"reward.use_reference": False},
    "no_image": {"reward.use_image": False},
    "no_correctness": {"reward.weights.correctness": 0.0},
    "no_completeness": {"reward.weights.completeness": 0.0},
    "no_text_quality": {"reward.weights.text_quality": 0.0},
    "no_local": {"reward.weights.local": 0.0},
}
OF_THE_PAPER = {
    "image": {"no_reference", "no_image", "no_correctness", "no_completeness", "no_text_quality"},
    "video": {"no_reference", "no_correctness", "no_completeness", "no_text_quality", "no_local"},
}
UPDATES: dict[str, dict[str, Any]] = {
    "dr_grpo": {
        "grpo.advantages.scale": "none",
        "grpo.objective.aggregation": "dr_grpo",
        "grpo.objective.beta": 0.0,
    },
    "dapo": {
        "grpo.num_iterations": 2,
        "grpo.advantages.drop_flat": True,
        "grpo.objective.aggregation": "dapo",
        "grpo.objective.epsilon_high": 0.28,
        "grpo.objective.beta": 0.0,
        "grpo.overlong.weight": 0.5,
    },
    "gspo": {
        "grpo.num_iterations": 2,
        "grpo.objective.importance": "sequence",
        "grpo.objective.epsilon_low": 3e-4,
        "grpo.objective.epsilon_high": 4e-4,
        "grpo.objective.beta": 0.0,
    },
    "ahead": {
        "rollout.ahead": 1,
        "grpo.objective.surrogate": "cispo",
        "grpo.objective.epsilon_low": 1.0,
        "grpo.objective.epsilon_high": 1.0,
    },
    "overlong": {"grpo.overlong.weight": 0.5},
    "gdpo": {"grpo.advantages.per_component": True, "grpo.advantages.scale": "batch"},
    "rloo": {
        "grpo.advantages.baseline": "leave_one_out",
        "grpo.advantages.scale": "none",
        "grpo.objective.importance": "product",
    },
}
REWARDS: dict[str, dict[str, Any]] = {
    "completeness": {"reward.weights.correctness": 0.02, "reward.weights.completeness": 0.07},
    "claim_differences": {"reward.family": "claim_differences", "judge.max_tokens": 4096},
    "balanced": {
        "reward.family": "balanced",
        "grpo.advantages.per_component": True,
        "grpo.advantages.scale": "none",
        "judge.max_tokens": 6144,
    },
}
FRAGMENTS = {f"ablations/{name}": changes for name, changes in ABLATIONS.items()} | {
    f"updates/{name}": changes for name, changes in UPDATES.items()
}
FRAGMENTS |= {f"rewards/{name}": changes for name, changes in REWARDS.items()}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of everything that is no section."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, part in value.items() for k, v in flat(part, f"{prefix}.{key}".lstrip(".")).items()}


def load(*names: str) -> RunConfig:
    return load_config(RunConfig, [CONFIGS / f"{name}.yaml" for name in names])


def test_the_files_are_these() -> None:
    for folder, known in (("ablations", ABLATIONS), ("updates", UPDATES), ("rewards", REWARDS)):
        assert {path.stem for path in (CONFIGS / folder).glob("*")} == set(known)
    assert set.union(*OF_THE_PAPER.values()) == set(ABLATIONS)
    assert all(len(names) == 5 for names in OF_THE_PAPER.values())


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_changes_exactly_what_its_name_says(fragment: str, base: str) -> None:
    before, after = flat(plain(load(base))), flat(plain(load(base, fragment)))
    assert before.keys() == after.keys()
    assert {key: value for key, value in after.items() if value != before[key]} == FRAGMENTS[fragment]


@pytest.mark.parametrize("base", BASES)
def test_an_ablation_and_an_update_go_together(base: str) -> None:
    config = load(base, "ablations/no_reference", "updates/dr_grpo")
    assert not config.reward.use_reference
    assert config.objective.max_completion_length == config.rollout.max_completion_length
    assert config.grpo.objective.max_completion_length is None, "the rollout's, whatever it is set to"


def test_without_its_weight_the_local_pass_is_not_asked_for() -> None:
    assert load("embedded/video").reward.local_active
    assert not load("embedded/video", "ablations/no_local").reward.local_active


@pytest.mark.parametrize("ablation", sorted(ABLATIONS))
@pytest.mark.parametrize("reward", ["claim_differences", "balanced"])
def test_an_ablation_of_another_reward_is_refused(ablation: str, reward: str) -> None:
    """It would do nothing: the rivals have neither these scores, nor a local pass, nor a way without picture."""
    with pytest.raises(ConfigError) as raised:
        load("paper/image", f"rewards/{reward}", f"ablations/{ablation}")
    (setting,) = ABLATIONS[ablation]
    assert setting in str(raised.value)
    assert f"reward.family is {reward}" in str(raised.value)


def test_a_video_reward_without_windows_is_refused_their_switch() -> None:
    told = r"reward\.local\.enabled false.* reward\.family is vqa: leave it out, or set reward\.family"
    with pytest.raises(ConfigError, match=told):
        load_config(RunConfig, [], ["reward.family=vqa", "reward.local.enabled=false"])
