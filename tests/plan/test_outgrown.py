"""The memory of groups that wait for long caches, against the count by hand."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from vcap_jax.configuration import load_config
from vcap_jax.models.widths import columns_for
from vcap_jax.plan.abstract import largest_sizes, model_of
from vcap_jax.plan.outgrown import outgrown_bytes
from vcap_jax.run.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]


def paper(*settings: str) -> RunConfig:
    return load_config(RunConfig, [ROOT / "configs" / "paper" / "video.yaml"], ["model.path=8B", *settings])


def test_a_group_waits_with_the_keys_and_values_of_its_prompt_and_captions() -> None:
    short = ("rollout.short_groups=32", "rollout.short_length=2048")
    config = paper(*short)
    model = model_of(config.model)
    found = outgrown_bytes(config, model)
    prompt = largest_sizes(config, model).tokens
    columns = columns_for(2048 + config.rollout.decode_steps_per_call)
    # 36 layers, 8 heads of keys and of values, 128 bfloat16 numbers each.
    caches = 36 * 2 * 8 * 128 * 2 * (prompt + 8 * columns)
    assert (
        1 <= found / config.grpo.groups_per_step / caches < 1.04
    )  # the rest: what was drawn, where draws stand
    processes = ["distributed.coordinator=a:1", "distributed.processes=2", "distributed.process_id=0"]
    assert outgrown_bytes(paper(*short, *processes), model) == found // 2
    assert outgrown_bytes(paper(), model) == 0


def test_nothing_is_put_on_a_device() -> None:
    before = sum(int(np.prod(x.shape)) for x in jax.live_arrays())
    config = paper("rollout.short_groups=32", "rollout.short_length=2048")
    outgrown_bytes(config, model_of(config.model))
    assert sum(int(np.prod(x.shape)) for x in jax.live_arrays()) == before
