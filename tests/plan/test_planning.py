"""What a plan refuses before anything is compiled."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from tests.tiny_policy import CONFIG
from vcap_jax.configuration import load_config
from vcap_jax.plan.planning import make_plan
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import hardware


def test_a_program_that_no_step_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    settings = [
        f"model.path={tmp_path}",
        "data.max_pixels=64",
        "data.buckets={tokens: [16], frames: [1], patches: [16]}",
        "rollout={group_size: 2, max_completion_length: 8, groups_per_batch: 2, decode_steps_per_call: 4}",
        "grpo={groups_per_step: 2, groups_per_micro_batch: 2, logprob_chunk: 8}",
    ]
    devices = jax.devices()[:2]
    with pytest.raises(ValueError, match=r"no program gradients in a step; there are .*decode.*gradient"):
        make_plan(
            load_config(RunConfig, [], settings),
            hardware("h100x2"),
            only=frozenset({"gradients", "decode"}),
            devices=(devices, devices),
        )
