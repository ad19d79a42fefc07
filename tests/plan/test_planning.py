"""What a plan refuses before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from tests.plan.tiny_run import tiny_run
from vcap_jax.configuration import ConfigError, load_config
from vcap_jax.plan.planning import layout, make_plan
from vcap_jax.plan.targets import PlanningError
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import hardware

PAPER = Path(__file__).resolve().parents[2] / "configs" / "paper"


def test_a_program_that_no_step_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    devices = jax.devices()[:2]
    with pytest.raises(ValueError, match=r"no program gradients in a step; there are .*decode.*gradient"):
        make_plan(
            tiny_run(tmp_path),
            hardware("h100x2"),
            only=frozenset({"gradients", "decode"}),
            devices=(devices, devices),
        )


@pytest.mark.parametrize(
    ("target", "policy", "mesh", "told"),
    [
        ("h100x1", None, "{tensor: 2}", "h100x1: mesh data=1 fsdp=-1 tensor=2 does not fit 1 devices"),
        ("h100x8", 6, "{tensor: 4}", "h100x6: mesh .* does not fit 6 devices"),
        ("h100x8", None, "{data: 3}", "does not fit 8 devices"),
        ("v5p-16", None, "{tensor: 8}", "a host draws captions on its own 4 devices: set a divisor"),
    ],
)
def test_a_mesh_that_does_not_fit_the_hardware_is_told(
    target: str, policy: int | None, mesh: str, told: str
) -> None:
    config = load_config(RunConfig, [PAPER / "image.yaml"], [f"mesh={mesh}", "model.attention=chunked"])
    with pytest.raises(PlanningError, match=told):
        layout(config, hardware(target), policy)


@pytest.mark.parametrize(
    ("target", "override", "told"),
    [
        ("h100x1", "rollout.group_size=1", "GRPO compares the captions of a group"),
        ("h100x1", "model.frozen=[]", "keep visual in model.frozen"),
        ("h100x1", "model.param_dtype=bfloat16", "set model.param_dtype=float32"),
        ("h100x16", "rollout.ahead=1", "in a run of 2 processes"),
        ("h100x16", "grpo.groups_per_step=33", "it must be a multiple of 2"),
    ],
)
def test_what_training_refuses_is_not_planned(target: str, override: str, told: str) -> None:
    config = load_config(
        RunConfig, [PAPER / "image.yaml"], ["model.path=8B", "model.attention=chunked", override]
    )
    devices = jax.devices()[:1]
    with pytest.raises(ConfigError, match=told):
        make_plan(config, hardware(target), devices=(devices, devices), only=frozenset({"optimizer"}))
