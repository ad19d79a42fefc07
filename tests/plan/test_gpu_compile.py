"""The programs of a step compiled for GPUs that are not there: what XLA's CUDA backend refuses, no other test sees.

Needs the `plan` extra; without it the tests are skipped by name. It is slow: each program is a compilation.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_policy import CONFIG
from vcap_jax.plan.targets import GPU_COMPILERS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("prefill", "decode", "log-probabilities", "gradient")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(map(importlib.util.find_spec, GPU_COMPILERS)),
        reason='needs the compiler for GPUs, the extra "plan", in an environment of its own',
    ),
]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan of a model of two layers with heads that cuDNN takes, on two GPUs, with prompts of two chunks."""
    folder = tmp_path_factory.mktemp("planned")
    config = copy.deepcopy(CONFIG)
    config["text_config"] |= {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
    }
    config["vision_config"] |= {"out_hidden_size": 128, "hidden_size": 64, "num_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    command = [
        *(sys.executable, "launch/plan.py", "--hardware", "h100x2", "--modality", "image", "--no-trials"),
        *("--programs", ",".join(PROGRAMS), "--json", str(folder / "plan.json")),
        f"model.path={folder}",
        "data.max_pixels=4096",
        "data.buckets={tokens: [1024], frames: [1], patches: [1024]}",
        "rollout={group_size: 2, max_completion_length: 128, groups_per_batch: 2, prefill_chunk: 512}",
        "rollout.decode_steps_per_call=8",
        "rollout.offload=[optimizer,parameters]",
        "grpo={groups_per_step: 2, groups_per_micro_batch: 2, caption_buckets: []}",
    ]
    # A process of its own: this one's JAX has begun on simulated devices, and keeps what it compiles for the CPU.
    own = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in own}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    # Every program fits that was asked for, and the others were not compiled.
    assert done.returncode == 3, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((folder / "plan.json").read_text())


def test_every_program_compiles_for_gpus(planned: dict[str, Any]) -> None:
    assert [p["name"].split()[0] for p in planned["programs"]] == list(PROGRAMS)
    assert all(p["flops"] > 0 and not p["uncounted"] for p in planned["programs"])


def test_prompts_and_updates_attend_with_cudnn_and_decoding_talks_to_nobody(planned: dict[str, Any]) -> None:
    programs = {p["name"].split()[0]: p for p in planned["programs"]}
    for name in ("prefill", "log-probabilities", "gradient"):
        assert "cudnn" in programs[name]["kernels"]
    assert "hopper" in programs["decode"]["kernels"]
    # Two replicas, each with the parameters of its own.
    assert programs["decode"]["sent"] == 0
    assert programs["gradient"]["sent"] > 0


def test_a_compiler_for_gpus_takes_the_hosts_memory_and_drops_it_from_shardings(tmp_path: Path) -> None:
    """What waits was put there, or there would be no plan. A sharding's kind of memory is dropped without a word:
    should this change, the plan may place what it now counts."""
    program = """
from vcap_jax.plan import targets
targets.prepare_environment()
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from vcap_jax.plan.offload import check_sending, sending
from vcap_jax.plan.targets import PlanningError
from vcap_jax.system.hardware import hardware
machine = hardware("h100x2")
mesh = jax.sharding.Mesh(np.array(targets.devices(machine.chip, machine.topology)), ("a",))
cut = NamedSharding(mesh, PartitionSpec("a"))
x = jax.ShapeDtypeStruct((1024, 256), np.float32, sharding=cut)
check_sending(sending([x, x]), 2 * 512 * 256 * 4, "cuda")
dropped = jax.jit(lambda x: x + 0, out_shardings=cut.with_memory_kind("pinned_host")).lower(x)
try:
    check_sending(dropped, 512 * 256 * 4, "cuda")
except PlanningError as error:
    print(error)
"""
    own = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in own} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "the compiler puts 0 into the host's memory" in done.stdout
