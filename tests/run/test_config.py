"""The schema of a run and the configurations that come with the project."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from vcap_jax.configuration import ConfigError, dump_config, load_config, parse_yaml
from vcap_jax.models.lora import LoraConfig
from vcap_jax.run.config import RunConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_configuration_loads_and_survives_printing(path, tmp_path):
    config = load_config(RunConfig, [path])
    (tmp_path / "printed.yaml").write_text(dump_config(config))
    assert load_config(RunConfig, [tmp_path / "printed.yaml"]) == config


def test_the_paper_table_is_stated_in_full():
    """Appendix, Table training-config: (image, video)."""
    image, video = (
        load_config(RunConfig, [CONFIGS / "paper" / f"{name}.yaml"]) for name in ("image", "video")
    )
    for config in (image, video):
        assert config.model.dtype == "bfloat16"
        assert config.model.frozen == ("visual",)
        assert config.optimizer.learning_rate == 5e-7
        assert config.optimizer.schedule == "cosine_with_min_lr"
        assert config.optimizer.min_lr_ratio == 0.1
        assert config.epochs == 1
        assert config.max_steps is None
        assert config.grpo.groups_per_step * config.rollout.group_size == 256
        assert config.rollout.group_size == 8
        sampling = config.rollout.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.9, 50)
        assert sampling.repetition_penalty == 1.05
        weights = config.reward.weights
        assert (weights.correctness, weights.completeness, weights.text_quality) == (0.05, 0.04, 0.01)
    assert (image.optimizer.warmup_ratio, video.optimizer.warmup_ratio) == (0.01, 0.003)
    assert (image.grpo.objective.beta, video.grpo.objective.beta) == (1e-3, 1e-4)
    assert (image.data.buckets.max_tokens, video.data.buckets.max_tokens) == (14000, 32000)
    assert (image.rollout.max_completion_length, video.rollout.max_completion_length) == (4096, 6300)
    assert image.data.max_pixels == 6422528
    assert (video.data.max_frames, video.data.max_frame_tokens) == (200, 256)
    assert video.reward.weights.local == 0.1


@pytest.mark.parametrize(("family", "kernel"), [("paper", "cudnn"), ("tpu", "splash"), ("embedded", "auto")])
@pytest.mark.parametrize("modality", ["image", "video"])
def test_runs_for_accelerators_demand_their_kernel(family, kernel, modality):
    """So that a run that would go without it stops, and "auto" is for what runs anywhere."""
    config = load_config(RunConfig, [CONFIGS / family / f"{modality}.yaml"])
    assert config.model.attention == kernel


@pytest.mark.parametrize("base", ["paper/image", "paper/video", "embedded/image"])
def test_lora_is_a_fragment_over_any_configuration(base):
    paths = [CONFIGS / f"{base}.yaml", CONFIGS / "lora.yaml"]
    plain, lora = load_config(RunConfig, paths[:1]), load_config(RunConfig, paths)
    assert plain.model.lora is None
    assert lora.model == dataclasses.replace(plain.model, lora=LoraConfig(rank=16, alpha=32.0))
    assert lora.optimizer == dataclasses.replace(plain.optimizer, learning_rate=5e-6)
    assert dataclasses.replace(lora, model=plain.model, optimizer=plain.optimizer) == plain


def test_steps_of_a_run():
    config = load_config(RunConfig, [CONFIGS / "paper" / "image.yaml"])
    assert config.total_steps(29_000) == 906
    assert load_config(RunConfig, [], ["max_steps=7"]).total_steps(3) == 7
    with pytest.raises(ConfigError, match="31 samples do not fill one step"):
        config.total_steps(31)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learnin_rate=1", "optimizer.learning_rate"),
        ("rollout.group_size=eight", "rollout.group_size"),
        ("rollout.sampling.temperature=0", "temperature"),
        ("name=''", "name is empty"),
        ("max_steps=0", "max_steps"),
    ],
)
def test_mistakes_are_refused_by_name(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(RunConfig, [], [override])


def test_printed_configuration_is_plain_yaml():
    assert parse_yaml(dump_config(RunConfig()))["rollout"]["sampling"]["top_p"] == 0.9


def test_names_of_earlier_versions_are_unknown_keys(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text("grpo: {updates_per_step: 3}\n")
    with pytest.raises(ConfigError, match=rf"grpo\.updates_per_step \({path}\): unknown key"):
        load_config(RunConfig, [path])


def test_components_of_a_reward_that_has_none_are_refused_before_work() -> None:
    asked = ["grpo.advantages.per_component=true", "reward.family=claim_differences"]
    with pytest.raises(ConfigError, match=r"per_component.*claim_differences is none: set it to false"):
        load_config(RunConfig, [], asked)
