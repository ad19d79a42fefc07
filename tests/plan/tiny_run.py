"""A run of the tiny model that is planned in seconds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tiny_policy import CONFIG
from vcap_jax.configuration import load_config
from vcap_jax.run.config import RunConfig


def tiny_run(folder: Path, *overrides: str) -> RunConfig:
    """folder: gets the model's config.json; a plan needs no more of a checkpoint."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    settings = [
        f"model.path={folder}",
        "data.max_pixels=64",
        "data.buckets={tokens: [16], frames: [1], patches: [16]}",
        "rollout={group_size: 2, max_completion_length: 8, groups_per_batch: 2, decode_steps_per_call: 4}",
        "grpo={groups_per_step: 2, groups_per_micro_batch: 2, logprob_chunk: 8}",
        *overrides,
    ]
    return load_config(RunConfig, [], settings)
