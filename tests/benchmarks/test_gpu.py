"""benchmarks/gpu.py without a GPU: its arithmetic, its checks, and its measurements of a small model on the CPU."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from benchmarks import gpu, gpu_correctness, gpu_measure, gpu_programs, gpu_worker
from benchmarks.gpu_programs import DoesNotFit, Fitted, Model, Shape
from tests.kernels.attention.new_tokens import PlainParts, Sizes
from tests.tiny_policy import CONFIG
from vcap_jax.kernels import attention
from vcap_jax.models.policy import split_model
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.system.hardware import CHIPS

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.long
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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DoesNotFit("3 layers need 90 GiB"), "3 layers need 90 GiB"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GiB\nmore"),
            "out of memory: RESOURCE_EXHAUSTED: 9 GiB",
        ),
        (jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR"), "JaxRuntimeError: INTERNAL: CUDA_ERROR"),
        (ValueError(), "ValueError: no message"),
    ],
)
def test_a_shape_that_fails_is_a_row_and_the_next_is_measured(error, said, monkeypatch):
    device = SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3", memory_stats=lambda: {"bytes_limit": 100})
    placement = gpu_programs.one_device(jax.devices()[0])
    monkeypatch.setattr(gpu_measure, "gpu", lambda: device)
    monkeypatch.setattr(gpu_measure, "one_device", lambda _: placement)
    monkeypatch.setattr(gpu_measure, "fit", lambda *_, **__: SimpleNamespace(layers=36, bytes=90))

    def measure(fitted: Any, shape: Shape, *_: Any) -> dict[str, Any]:
        if shape.prompt == 2:
            raise error
        return {"seconds": 1.0, "model_flops": 1e12, "flops_per_second": 1e12}

    monkeypatch.setattr(gpu_measure, "measure_update", measure)
    notes: list[str] = []
    shapes = [Shape("image", prompt, 4) for prompt in (1, 2, 3)]
    rows = list(gpu_measure.rows("update", shapes, "layer", 1, notes.append))
    assert [row.get("failed") for row in rows] == [None, said, None]
    assert [row["sizes"]["prompt"] for row in rows] == [1, 2, 3]
    assert [row.get("seconds") for row in rows] == [1.0, None, 1.0]
    assert f"FAILED: {said}" in gpu.line(rows[1])
    assert any("Traceback" in note for note in notes)


def test_every_row_is_written_as_it_is_measured(tmp_path: Path, monkeypatch):
    """Whatever ends the process: what it has measured stays."""
    monkeypatch.setattr(gpu_measure, "gpu", lambda: SimpleNamespace(device_kind="NVIDIA H200"))
    file = tmp_path / "decode.json"

    def rows(*_: Any) -> Any:
        for name in ("first", "second"):
            yield {"part": "decode", "modality": "image", "shape": name, "failed": "too large"}
        assert [row["shape"] for row in json.loads(file.read_text())["rows"]] == ["first", "second"]
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_measure, "rows", rows)
    monkeypatch.setattr(
        sys, "argv", ["", "decode", f"--out={file}", "--remat=layer", "--modality=image", "--groups=1"]
    )
    with pytest.raises(KeyboardInterrupt):
        gpu_worker.main()
    found = json.loads(file.read_text())
    assert found["device"] == "NVIDIA H200"
    assert [row["shape"] for row in found["rows"]] == ["first", "second"]


def one_row(part: str) -> dict[str, Any]:
    return {"part": part, "modality": "image", "shape": "1 + 8 x 1", "layers": 1, "seconds": 1.0}


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: dict[str, tuple[int, Any]]) -> Any:
    """What benchmarks/gpu.py returns and writes if its parts end with that status and file (None: without one)."""

    def worker(arguments: Any, _: Any) -> int:
        status, found = ends[arguments[0]]
        if found is not None:
            (tmp_path / f"{arguments[0]}.json").write_text(json.dumps(found))
        return status

    monkeypatch.setattr(gpu, "worker", worker)
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"--out={tmp_path}"])
    status, file = gpu.main(), tmp_path / "gpu.json"
    return status, json.loads(file.read_text()) if file.exists() else None


RIGHT: tuple[int, Any] = (
    0,
    {"device": "NVIDIA H100 80GB HBM3", "checks": [], "failed_checks": 0, "rows": []},
)


def test_a_part_that_dies_leaves_its_rows_and_the_next_part_is_run(tmp_path: Path, monkeypatch, capsys):
    ends = {"correctness": RIGHT, "decode": (-11, {"rows": [one_row("decode")]})}
    status, found = measured(tmp_path, monkeypatch, ends | {"update": (0, {"rows": [one_row("update")]})})
    assert status == 2
    assert found["device"] == "NVIDIA H100 80GB HBM3"
    assert [(row["part"], "failed" in row) for row in found["rows"]] == [
        ("decode", False),
        ("decode", True),
        ("update", False),
    ]
    assert "its process ended with status -11" in capsys.readouterr().out


def test_a_row_that_failed_is_told_by_the_status(tmp_path: Path, monkeypatch):
    failed = {"rows": [one_row("decode") | {"failed": "too large"}]}
    ends = {"correctness": RIGHT, "decode": (2, failed), "update": (0, {"rows": [one_row("update")]})}
    status, found = measured(tmp_path, monkeypatch, ends)
    assert (status, len(found["rows"])) == (2, 2)
    assert measured(tmp_path, monkeypatch, ends | {"decode": (0, {"rows": [one_row("decode")]})})[0] == 0


def test_a_wrong_result_ends_everything_and_is_kept(tmp_path: Path, monkeypatch):
    wrong = (1, RIGHT[1] | {"failed_checks": 1})
    status, found = measured(tmp_path, monkeypatch, {"correctness": wrong})
    assert (status, found["failed_checks"], found["rows"]) == (1, 1, [])
    (tmp_path / "gpu.json").unlink()
    assert measured(tmp_path, monkeypatch, {"correctness": (1, None)}) == (1, None)


def test_numbers_of_groups_that_are_not_measured_are_refused(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"--out={tmp_path / 'out'}", "--groups", "3"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert re.search("invalid choice: '?3", capsys.readouterr().err)  # in quotes from Python 3.14 on
    assert not (tmp_path / "out").exists()


@dataclasses.dataclass(frozen=True)
class Deaf(attention.Chunked):
    """A kernel that sees padding: wrong wherever prompts differ in length."""

    def forward(self, queries, keys, values, lengths, *, causal):
        return super().forward(queries, keys, values, None, causal=causal)


@pytest.mark.long
def test_checks_of_attention_find_a_wrong_kernel():
    groups = ((96, 2, 64, (96, 31)), (64, 3, 32, (50, 0)))
    right = list(
        gpu_correctness.attention_checks(attention.Chunked(queries=64, scores=1 << 13, whole=0), groups)
    )
    assert len(right) == 24
    assert [check for check in right if not check.passed] == []
    wrong = gpu_correctness.attention_checks(Deaf(queries=64, scores=1 << 13, whole=0), groups[:1])
    assert any(not check.passed for check in wrong)


@dataclasses.dataclass(frozen=True)
class Forgetful(PlainParts):
    """A kernel for new tokens that leaves out the last column of every caption."""

    def decode(self, queries, prompt, captions):
        seen = captions.seen
        late = jnp.maximum(seen.late - 1, 0)
        return super().decode(
            queries, prompt, dataclasses.replace(captions, seen=dataclasses.replace(seen, late=late))
        )


def test_checks_of_new_tokens_find_a_wrong_kernel():
    sizes = (Sizes(2, 3, 4, 2, prompt=96, start=32, late=16), Sizes(1, 2, 4, 2, prompt=64, start=0, late=2))
    right = list(gpu_correctness.decode_checks(PlainParts(), sizes))
    assert len(right) == 2
    assert [check for check in right if not check.passed] == []
    assert any(not check.passed for check in gpu_correctness.decode_checks(Forgetful(), sizes))


@pytest.mark.long
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


def test_transformers_that_cannot_be_started_is_a_row(tmp_path: Path):
    (row,) = gpu.transformers_rows(str(tmp_path / "no-python"), [], "sdpa")
    assert "No such file" in row["failed"]
    (row,) = gpu.transformers_rows("false", [], "sdpa")
    assert row["failed"].endswith("ended with status 1")
    assert "FAILED" in gpu.side_line(row, None)


@pytest.mark.long
def test_checks_of_a_model_pass_for_a_right_kernel_only():
    right = gpu_correctness.model_checks(attention.Chunked(queries=128, scores=1 << 14, whole=0))
    assert [check for check in right if not check.passed] == []
    wrong = gpu_correctness.model_checks(Deaf(queries=128, scores=1 << 14, whole=0))
    assert any(not check.passed for check in wrong)
