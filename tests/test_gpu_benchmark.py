"""benchmarks/gpu.py without a GPU: its arithmetic, its checks, and its measurements of a small model on the CPU."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from benchmarks import gpu, gpu_correctness, gpu_measure, gpu_programs
from benchmarks.gpu_programs import DoesNotFit, Fitted, Model, Shape
from tests.tiny_policy import CONFIG
from vcap_jax.plan.hardware import CHIPS
from vcap_jax.policy import split_model
from vcap_jax.qwen3_vl import attention
from vcap_jax.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.qwen3_vl.model import Qwen3VL

ROOT = Path(__file__).resolve().parent.parent


def small_model(placement: Any) -> Model:
    config = Qwen3VLConfig.from_dict(CONFIG)
    whole = nnx.eval_shape(
        lambda: Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    )
    graphdef, trainable, frozen = split_model(whole, ("visual",))
    return Model(
        config, attention.CHUNKED, graphdef, placement.abstract(trainable), placement.abstract(frozen)
    )


def test_as_many_layers_as_fit():
    asked = []

    def build(layers: int, tune: bool) -> tuple[Any, ...]:
        asked.append((layers, tune))
        return (SimpleNamespace(bytes=100 + 10 * layers), SimpleNamespace(bytes=50))

    def model(layers: int) -> Any:
        return SimpleNamespace(
            bytes=layers, config=SimpleNamespace(text=SimpleNamespace(num_hidden_layers=layers))
        )

    def chosen(budget: int) -> int:
        found = gpu_programs.fit(lambda m, tune: build(m.bytes, tune), model, budget, most=36)
        assert found.bytes <= budget
        return found.layers

    assert chosen(10_000) == 36
    assert chosen(100 + 10 * 20) == 20
    assert chosen(100 + 10 * 20 + 9) == 20
    assert asked[-1] == (20, True)
    with pytest.raises(DoesNotFit, match="3 layers need"):
        chosen(120)


def test_growth_that_is_not_even_is_followed_down():
    def build(model: Any, tune: bool) -> tuple[Any, ...]:
        layers = model.config.text.num_hidden_layers
        return (SimpleNamespace(bytes=layers**2),)

    def model(layers: int) -> Any:
        return SimpleNamespace(config=SimpleNamespace(text=SimpleNamespace(num_hidden_layers=layers)))

    assert gpu_programs.fit(build, model, 300, most=36).layers == 17


def test_bytes_a_token_cannot_do_without():
    whole = nnx.eval_shape(
        lambda: Qwen3VL(gpu_programs.width_8b(36), rngs=nnx.Rngs(0), param_dtype=jnp.bfloat16)
    )
    _, trainable, _ = split_model(whole, ("visual",))
    model = SimpleNamespace(config=gpu_programs.width_8b(36), trainable=trainable)
    read = gpu_programs.must_read(model, Shape("image", 8192, 1536, groups=2), 768)
    # Per layer qkv, out, gate, up, down and the norms; the final norm, the head and 16 rows of the embedding table.
    layer = 4096 * (6144 + 4096 + 3 * 12288) + 2 * 4096 + 2 * 128
    assert read["parameters"] == 2 * (36 * layer + 4096 + 151936 * 4096 + 16 * 4096)
    token = 36 * 2 * 8 * 128 * 2
    assert read["prompts"] == 2 * 8192 * token
    assert read["captions"] == 16 * 768 * token


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA L4", None),
    ],
)
def test_cards_by_name(kind: str, name: str | None):
    assert gpu_measure.chip_of(kind) == (None if name is None else CHIPS[name])


def test_measures_decoding_and_updates():
    placement = gpu_programs.one_device(jax.devices()[0])
    model = small_model(placement)
    shape = Shape("image", 144, 192, groups=2, captions=3)
    decode = Fitted(model, gpu_programs.decode_programs(model, shape, placement, True))
    figures = gpu_measure.measure_decode(decode, shape, placement, 1, CHIPS["h100"])
    assert figures["tokens_per_second"] == pytest.approx(6 / figures["seconds_per_token"])
    needed = sum(figures["must_read"].values())
    assert figures["bandwidth_share"] == pytest.approx(needed / figures["seconds_per_token"] / 3.35e12)

    update = Fitted(model, gpu_programs.update_programs(model, shape, placement, True))
    figures = gpu_measure.measure_update(update, shape, placement, 1, None)
    assert figures["flops_per_second"] == pytest.approx(figures["model_flops"] / figures["seconds"])
    assert "utilisation" not in figures


@dataclasses.dataclass(frozen=True)
class Deaf(attention.Chunked):
    """A kernel that sees padding: wrong wherever prompts differ in length."""

    def forward(self, queries, keys, values, lengths, *, causal):
        return super().forward(queries, keys, values, None, causal=causal)


def test_checks_of_attention_find_a_wrong_kernel():
    groups = ((96, 2, 64, (96, 31)), (64, 3, 32, (50, 0)))
    right = gpu_correctness.attention_checks(attention.Chunked(queries=64, scores=1 << 13, whole=0), groups)
    assert [check for check in right if not check.passed] == []
    wrong = gpu_correctness.attention_checks(Deaf(queries=64, scores=1 << 13, whole=0), groups)
    assert any(not check.passed for check in wrong)


def test_without_a_gpu_it_says_so(tmp_path: Path):
    command = [sys.executable, "benchmarks/gpu.py", f"--out={tmp_path}", "--parts", "decode"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--compile-for h100x1" in done.stderr
    assert not (tmp_path / "gpu.json").exists()


def test_transformers_gets_the_same_work(tmp_path: Path):
    worker = tmp_path / "python"
    worker.write_text(
        "#!/bin/sh\n"
        f'exec {sys.executable} -c "import sys, json; job = json.load(sys.stdin)\n'
        "for task in job['tasks']: print(json.dumps({'task': task, 'seconds': 1.0}))\"\n"
    )
    worker.chmod(0o755)
    sizes = dataclasses.asdict(Shape("image", 8192, 1536))
    rows = [
        {"part": "update", "layers": 9, "sizes": sizes, "seconds": 0.5},
        {"part": "update", "failed": "too large", "sizes": sizes},
        {"part": "decode", "layers": 9, "sizes": sizes | {"groups": 2}},
    ]
    found = list(gpu.transformers_rows(str(worker), rows, "sdpa"))
    expected = {"part": "update", "layers": 9, "prompt": 8192, "caption": 1536, "captions": 8}
    assert [row["task"] for row in found] == [expected]
    assert "2.0 times as long" in gpu.side_line(found[0], gpu.partner(found[0]["task"], rows))
    assert json.dumps(found)


@pytest.mark.slow
def test_checks_of_a_model_pass_for_a_right_kernel_only():
    right = gpu_correctness.model_checks(attention.Chunked(queries=128, scores=1 << 14, whole=0))
    assert [check for check in right if not check.passed] == []
    wrong = gpu_correctness.model_checks(Deaf(queries=128, scores=1 << 14, whole=0))
    assert any(not check.passed for check in wrong)
