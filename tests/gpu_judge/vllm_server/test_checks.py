"""What is looked at before anything is started."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_judge.vllm_server import checks
from gpu_judge.vllm_server.checkpoint import CheckpointError, read_checkpoint
from gpu_judge.vllm_server.checks import (
    CheckError,
    Gpu,
    check_build,
    check_compiler,
    check_gpus,
    check_heads,
    check_host_memory,
    check_ports,
    free_ports,
    parse_gpus,
)
from gpu_judge.vllm_server.installation import (
    Installation,
    InstallationError,
    check_versions,
    find_executable,
    inspect,
    release,
)
from tests.gpu_judge.vllm_fakes import EIGHT_B, settings, write_checkpoint, write_installation

GIB = 1024**3
NODE = parse_gpus("".join(f"{k}, NVIDIA H800, 580.95.05, 81559, 80990\n" for k in range(8)))
FOUND = Installation(
    executable=Path("/v/vllm"), version="0.32.1", transformers="5.19.0", cuda="13.0", headers=True
)


def test_reads_nvidia_smi() -> None:
    assert len(NODE) == 8
    assert NODE[7] == Gpu(
        index=7, name="NVIDIA H800", driver="580.95.05", total=81559 * 1024**2, free=80990 * 1024**2
    )


def test_memory_that_the_driver_does_not_tell_is_unknown() -> None:
    (gpu,) = parse_gpus("0, NVIDIA GB10, rev 2, 580.82, [N/A], [Not Supported]\n\n")
    assert (gpu.name, gpu.total, gpu.free) == ("NVIDIA GB10, rev 2", None, None)
    assert check_gpus(settings(), EIGHT_B, [gpu], "13.0") == []


@pytest.mark.parametrize("line", ["No devices were found", "0, H800", "a, NVIDIA H800, 580.1, 1, 1"])
def test_another_form_is_an_error_that_shows_it(line: str) -> None:
    with pytest.raises(CheckError, match=line.split(",")[0]):
        parse_gpus(line)


def test_an_empty_node_is_fine() -> None:
    assert check_gpus(settings(gpus=(6, 7)), EIGHT_B, NODE, "13.0") == []


def test_gpus_that_are_not_there() -> None:
    (problem,) = check_gpus(settings(gpus=(7, 8, 9)), EIGHT_B, NODE, "13.0")
    assert problem.startswith("--gpus names 8, 9, and this machine has: 0 (NVIDIA H800)")


@pytest.mark.parametrize(
    ("driver", "cuda", "fine"),
    [("580.0", "13.0", True), ("575.57", "13.0", False), ("575.57", "12.9", True), ("470.1", "12.9", False)],
)
def test_the_driver_must_know_vllms_cuda(driver: str, cuda: str, fine: bool) -> None:
    problems = check_gpus(settings(), EIGHT_B, [replace(NODE[0], driver=driver)], cuda)
    assert fine == (problems == [])
    assert fine or ("update the driver" in problems[0] and driver in problems[0])


def test_a_gpu_in_use_is_named_with_what_would_fit() -> None:
    for free in (20 * GIB, 20.6 * GIB):  # the nearest per cent is less, and more
        used = replace(NODE[0], free=int(free))
        (problem,) = check_gpus(settings(), EIGHT_B, [used], "13.0")
        assert f"GPU 0 has {free / GIB:.1f} GiB free" in problem
        possible = float(problem.rpartition(" ")[2])
        assert possible * NODE[0].total <= free  # type: ignore[operator]


def test_a_model_that_cannot_fit() -> None:
    large = replace(EIGHT_B, weight_bytes=100 * GIB)
    assert "do not fit into" in check_gpus(settings(), large, NODE, "13.0")[0]
    assert check_gpus(settings(gpus=(0, 1), tensor_parallel_size=2), large, NODE, "13.0") == []
    assert check_gpus(settings(quantization="fp8"), large, NODE, "13.0") == []


@pytest.mark.parametrize(
    ("modality", "share", "fits"),
    [("image", 0.30, True), ("image", 0.25, False), ("video", 0.36, True), ("video", 0.30, False)],
)
def test_what_vllm_computes_with_must_fit_beside_the_longest_judgement(
    modality: str, share: float, fits: bool
) -> None:
    """The shares are those of launch/h800_8x.sh in turns, and ones at which vLLM would end after loading."""
    asked = settings(modality=modality, gpu_memory_utilization=share)
    problems = check_gpus(asked, EIGHT_B, [NODE[0]], "13.0")
    assert (problems == []) == fits
    if modality == "video" and not fits:
        assert (
            "one judgement of 41984 tokens (5.8 GiB) and what vLLM computes with (about 4.1 GiB)"
            in problems[0]
        )
        assert "raise --gpu-memory-utilization" in problems[0]


def test_tensor_parallelism_divides_heads() -> None:
    assert check_heads(settings(gpus=(0, 1, 2, 3), tensor_parallel_size=4), EIGHT_B) == []
    # More GPUs than key and value heads: some of those are kept twice.
    assert check_heads(settings(gpus=tuple(range(16)), tensor_parallel_size=16), EIGHT_B) == []
    three = check_heads(settings(gpus=(0, 1, 2), tensor_parallel_size=3), EIGHT_B)
    assert [problem.split(":")[0].split()[-2:] for problem in three[:2]] == [
        ["attention", "heads"],
        ["vision", "tower"],
    ]
    assert "8 key and value heads" in three[2]


def test_ports() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (problem,) = check_ports("127.0.0.1", [port])
        assert problem.startswith(f"port {port} is in use")
    ports = free_ports("127.0.0.1", 5)
    assert len(set(ports)) == 5
    assert check_ports("127.0.0.1", ports) == []
    assert "cannot listen on 203.0.113.7" in check_ports("203.0.113.7", [ports[0]])[0]


def test_media_caches_must_fit_into_memory() -> None:
    roomy, tight = "MemAvailable:   999999999 kB\n", "MemTotal: 9 kB\nMemAvailable:   8388608 kB\n"
    assert check_host_memory(settings(gpus=(0, 1)), roomy) == []
    (problem,) = check_host_memory(settings(gpus=(0, 1)), tight)
    assert "need 32.0 GiB of memory, and 8.0 GiB are available" in problem
    assert check_host_memory(settings(gpus=(0, 1)), "") == []
    # Of one server on the CPU, whose keys and values lie there too.
    (problem,) = check_host_memory(settings(gpus=None, cpu_cache_gb=5), tight)
    assert "need 21.0 GiB of memory" in problem


def test_builds_and_versions() -> None:
    cpu = replace(FOUND, version="0.32.0+cpu", cuda=None)
    assert check_build(settings(), FOUND) == check_build(settings(gpus=None), cpu) == []
    assert "is a build for CPUs" in check_build(settings(), cpu)[0]
    assert "is a build for GPUs" in check_build(settings(gpus=None), FOUND)[0]
    assert check_versions(FOUND) == check_versions(cpu) == []
    assert "vLLM is 0.33.0" in check_versions(replace(FOUND, version="0.33.0"))[0]
    for version in ("5.20.0", "5.22.1", "6.0.0"):
        assert f"transformers is {version}" in check_versions(replace(FOUND, transformers=version))[0]
    assert [release(v) for v in ("0.32.0+cpu", "0.32.1rc2", "580.95.05")] == [
        (0, 32, 0),
        (0, 32),
        (580, 95, 5),
    ]


def test_what_triton_builds_with_is_looked_for_where_gpus_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(checks.shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    assert check_compiler(settings(), FOUND) == []
    assert (
        "needs Python.h, its Python's header" in check_compiler(settings(), replace(FOUND, headers=False))[0]
    )
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    (problem,) = check_compiler(settings(), replace(FOUND, headers=False))
    assert "needs a C compiler and Python.h" in problem
    assert "apt install build-essential python3-dev" in problem
    assert check_compiler(settings(gpus=None), replace(FOUND, headers=False)) == []


def test_finds_and_asks_an_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = write_installation(tmp_path / "env", "", {"vllm": "0.32.7", "cuda": "13.0"})
    monkeypatch.setenv("PATH", str(tmp_path / "env"), prepend=":")
    assert find_executable(None) == find_executable(executable) == executable
    assert inspect(executable) == Installation(
        executable=executable, version="0.32.7", transformers="5.19.0", cuda="13.0", headers=True
    )


@pytest.mark.parametrize("first_line", ["#!/bin/sh", "#!/usr/bin/env python3"])
def test_a_script_that_does_not_name_its_python_stands_beside_it(tmp_path: Path, first_line: str) -> None:
    executable = write_installation(tmp_path / "env", "", {"vllm": "0.32.7"})
    executable.write_text(f"{first_line}\n")
    assert inspect(executable).version == "0.32.7"
    (tmp_path / "env" / "python").unlink()
    with pytest.raises(InstallationError, match="does not say which Python runs it"):
        inspect(executable)


def test_no_vllm_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InstallationError, match=r"requirements-vllm\.txt"):
        find_executable(tmp_path / "vllm")
    empty = write_installation(tmp_path / "env", "", {"vllm": None})
    with pytest.raises(InstallationError, match="has no vllm"):
        inspect(empty)
    (tmp_path / "env" / "python").write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    with pytest.raises(InstallationError, match="broken"):
        inspect(empty)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(InstallationError, match=r"--vllm \.venv-vllm/bin/vllm"):
        find_executable(None)


def test_the_probe_runs_in_a_real_python(tmp_path: Path) -> None:
    executable = tmp_path / "vllm"
    executable.write_text(f"#!{sys.executable}\n")
    with pytest.raises(InstallationError, match="has no vllm"):  # the tests' own environment has none
        inspect(executable)


def test_reads_a_checkpoint(tmp_path: Path) -> None:
    single = read_checkpoint(write_checkpoint(tmp_path / "single"))
    assert (single.heads, single.key_value_heads, single.vision_heads, single.video_token_id) == (4, 2, 4, 7)
    assert single.pixels_per_token == 1024
    assert single.cache_bytes_per_token == 2 * 2 * 2 * 32 * 2
    assert (single.image_min_pixels, single.video_min_pixels) == (65_536, 4_096)
    sharded = read_checkpoint(write_checkpoint(tmp_path / "sharded", shards=3))
    assert sharded.weight_bytes > 2 * single.weight_bytes


def test_the_lower_bounds_are_the_checkpoints_own(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "judge")
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 111}}))
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"min_pixels": 222}))
    found = read_checkpoint(folder)
    assert (found.image_min_pixels, found.video_min_pixels) == (111, 222)
    (folder / "processor_config.json").write_text(
        json.dumps({"video_processor": {"size": {"shortest_edge": 333}}})
    )
    found = read_checkpoint(folder)
    assert (found.image_min_pixels, found.video_min_pixels) == (111, 333)


def _remove_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def _cut_shard(folder: Path) -> None:
    shard = folder / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])


def _empty_shard(folder: Path) -> None:
    (folder / "model-00001-of-00003.safetensors").write_bytes(b"")


def _other_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "qwen3_vl", "text_config": {}}')


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_remove_shard, r"1 of 3 weight files .*model-00002-of-00003.*repeat it"),
        (_cut_shard, r"1 of 3 weight files .*model-00003"),
        (_empty_shard, r"1 of 3 weight files .*model-00001"),
        (_other_model, "is a 'llama' checkpoint"),
        (_broken_config, "lacks or garbles"),
        (lambda folder: (folder / "config.json").unlink(), "is this a checkpoint folder"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is not valid JSON"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
        (
            lambda folder: (folder / "tokenizer.json").write_text('{"a'),
            r"tokenizer\.json is not valid JSON .*restore it",
        ),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), r"has no preprocessor_config\.json"),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text(""),
            r"tokenizer_config\.json is not valid JSON .*restore it",
        ),
    ],
)
def test_checkpoints_that_cannot_be_served(tmp_path: Path, harm: Any, message: str) -> None:
    folder = write_checkpoint(tmp_path / "judge", shards=3)
    harm(folder)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(folder)


def test_a_name_on_a_hub_is_no_folder() -> None:
    with pytest.raises(CheckpointError, match="hf download"):
        read_checkpoint(Path("Qwen/Qwen3-VL-8B-Instruct"))
