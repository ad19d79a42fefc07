"""FLOPs counted from compiled programs against a count by hand: here, for GPUs and for TPUs.

The latter two need the `plan` extra and are slow: compilers differ in what they make of a product, and only a program
of theirs shows it. (On eight TPU chips a product with parameters that are gathered meanwhile becomes a loop that counts
by two, which was once counted double.)
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.tiny_policy import CONFIG
from vcap_jax.configuration import load_config
from vcap_jax.plan.planning import make_plan
from vcap_jax.plan.tables import as_json
from vcap_jax.plan.targets import GPU_COMPILERS
from vcap_jax.run.config import RunConfig
from vcap_jax.system.hardware import hardware

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("prefill", "decode", "log-probabilities", "gradient")
PROMPT, CAPTIONS, CAPTION, CHUNK = 512, 2, 128, 64
WIDTH, INNER, LAYERS, VOCABULARY, HEADS, KEY_HEADS, HEAD = 256, 512, 3, 1024, 8, 1, 128
"""Eight heads to a key head: a product of fewer rows may be padded to what the hardware takes."""


@dataclass(frozen=True)
class Forward:
    """Of one device, which has one group. weights: products of one layer and one token. score: both products of one
    score of one layer."""

    weights: int = 2 * WIDTH * ((2 * HEADS + 2 * KEY_HEADS) * HEAD + 3 * INNER)
    down: int = 2 * WIDTH * INNER
    qkv: int = 2 * WIDTH * (HEADS + 2 * KEY_HEADS) * HEAD
    score: int = 4 * HEADS * HEAD
    head: int = 2 * WIDTH * VOCABULARY


def by_hand(*, causal: float, backward_causal: float, backward: float) -> dict[str, float]:
    """causal, backward_causal: which share of a square of scores a causal kernel computes, forward and backward.
    backward: a kernel's, in forward passes."""
    f, drawn = Forward(), CAPTIONS * CAPTION
    tokens = PROMPT + drawn

    def of_attention(causal: float) -> float:
        return LAYERS * f.score * (causal * (PROMPT**2 + CAPTIONS * CAPTION**2) + drawn * PROMPT)

    attention = of_attention(causal)
    weights = LAYERS * f.weights * tokens
    # Of a layer that is computed again the last product is not needed.
    again = weights - LAYERS * f.down * tokens
    # The last layer's keys and values (with queries that nobody asks for: one product), and all of it for one token.
    last = f.qkv * PROMPT + f.weights + f.score * PROMPT + f.head
    return {
        "prefill": (LAYERS - 1) * (f.weights * PROMPT + f.score * causal * PROMPT**2) + last,
        "decode": CAPTIONS
        * (LAYERS * (f.weights + f.score * (PROMPT + CAPTION + CHUNK)) + f.head),  # the whole cache
        "log-probabilities": weights + attention + f.head * drawn,
        # The vocabulary's logits are computed again as well.
        "gradient": 3 * weights
        + again
        + 2 * attention
        + backward * of_attention(backward_causal)
        + 4 * f.head * drawn,
    }


def settings(folder: Path, groups: int) -> list[str]:
    config = copy.deepcopy(CONFIG)
    config["text_config"] |= {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD,
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    }
    config["vision_config"] |= {"out_hidden_size": WIDTH, "hidden_size": 64, "num_heads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return [
        f"model.path={folder}",
        "model.remat=layer",
        "model.decode_attention=dense",  # kernels compute on rows that are padded to what the hardware takes
        "data.max_pixels=1024",
        f"data.buckets={{tokens: [{PROMPT}], frames: [1], patches: [256]}}",
        f"rollout={{group_size: {CAPTIONS}, max_completion_length: {CAPTION}, groups_per_batch: {groups}}}",
        f"rollout={{decode_steps_per_call: {CHUNK}, prefill_chunk: {PROMPT}}}",
        f"grpo={{groups_per_step: {groups}, groups_per_micro_batch: {groups}, caption_buckets: []}}",
        f"grpo.logprob_chunk={CHUNK}",
        "grpo.objective={beta: 0.1}",
    ]


def check(plan: dict[str, Any], expected: dict[str, float]) -> None:
    counted = {p["name"].split()[0]: p["flops"] for p in plan["programs"]}
    assert not [p["uncounted"] for p in plan["programs"] if p["uncounted"]]
    assert {name: counted[name] / expected[name] for name in PROGRAMS} == pytest.approx(
        dict.fromkeys(PROGRAMS, 1.0), rel=0.02
    )


@pytest.mark.long
def test_flops_on_this_machine_are_those_by_hand(tmp_path: Path) -> None:
    devices = jax.devices()[:2]
    config = load_config(RunConfig, [], [*settings(tmp_path, 2), "model.attention=dense"])
    plan = make_plan(config, hardware("h100x2"), devices=(devices, devices), only=frozenset(PROGRAMS))
    check(as_json(plan), by_hand(causal=1.0, backward_causal=1.0, backward=2.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "packages", "devices", "backward_causal"),
    [
        ("h100x2", GPU_COMPILERS, 2, 0.5),
        ("v5p-16", ("libtpu",), 8, 1.0),
    ],  # so short, the latter's keys are one span
)
def test_flops_as_other_compilers_have_them_are_those_by_hand(
    tmp_path: Path, name: str, packages: tuple[str, ...], devices: int, backward_causal: float
) -> None:
    if not any(map(importlib.util.find_spec, packages)):
        pytest.skip(f'needs {" or ".join(packages)}: pip install -e ".[plan]"')
    command = [
        *(sys.executable, "launch/plan.py", "--hardware", name, "--modality", "image", "--no-trials"),
        *("--programs", ",".join(PROGRAMS), "--json", str(tmp_path / "plan.json")),
        *settings(tmp_path, devices),
    ]
    # A process of its own: this one's JAX has begun on simulated devices, and keeps what it compiles for the CPU.
    own = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in own}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 3, done.stdout[-2000:] + done.stderr[-4000:]
    check(
        json.loads((tmp_path / "plan.json").read_text()),
        by_hand(causal=0.5, backward_causal=backward_causal, backward=2.5),
    )
