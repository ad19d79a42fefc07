"""The whole of serving vLLM, from the command to the end of its last server, on small scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_judge.vllm_server import run
from gpu_judge.vllm_server.processes import family
from gpu_judge.vllm_server.settings import ServeSettings
from tests.gpu_judge.vllm_fakes import (
    ENGINE_LOG,
    SERVER,
    give_orders,
    starts,
    write_checkpoint,
    write_installation,
)
from tests.gpu_judge.vllm_server.supervising import QUICK, answers
from tests.patience import GUARD_S, until

ROOT = Path(__file__).resolve().parents[3]


def serve(vllm: Path, folder: Path, *extra: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "gpu_judge" / "serve.py"), "--backend", "vllm", "--gpus", "none"]
    command += ["--model", str(write_checkpoint(folder / "model")), "--vllm", str(vllm), "--port", "0"]
    command += ["--port-file", str(folder / "addresses"), "--log-dir", str(folder / "logs")]
    command += ["--media-cache-gb", "0.01", "--cpu-cache-gb", "1", *extra]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def running(process: subprocess.Popen[str]) -> None:
    assert process.poll() is None, process.communicate()


def test_the_command_from_start_to_end(vllm: Path, tmp_path: Path) -> None:
    process = serve(vllm, tmp_path, JUDGE_KEY="s3cret", VLLM_SERVER_DEV_MODE="1", VLLM_API_KEY="another")
    try:
        assert process.stdout is not None
        until((tmp_path / "addresses").exists, "the address", check=lambda: running(process))
        address = process.stdout.readline().removeprefix("judge ready at ").strip()
        assert (tmp_path / "addresses").read_text() == address + "\n"
        port = int(address.rpartition(":")[2])
        (log,) = (tmp_path / "logs").iterdir()
        # Neither of our own environment's settings reaches a server that was not to have them.
        assert "start 1 in mode good with key None and dev mode 0" in log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=GUARD_S) == 0
        assert not answers(port)
    finally:
        process.kill()
        process.communicate()


def test_servers_end_with_a_serve_that_is_killed(vllm: Path, tmp_path: Path) -> None:
    process = serve(vllm, tmp_path)
    addresses = tmp_path / "addresses"
    until(lambda: addresses.exists() and addresses.read_text(), "the address", check=lambda: running(process))
    port = int(addresses.read_text().strip().rpartition(":")[2])
    process.kill()
    process.communicate()
    until(lambda: not answers(port) and not family(starts(vllm, port)[0]), "the end of the server")


def run_here(vllm: Path, folder: Path, port_file: Path | None = None) -> int:
    chosen = ServeSettings(
        model=write_checkpoint(folder / "model"),
        gpus=None,
        vllm=vllm,
        port=0,
        media_cache_gb=0.01,
        cpu_cache_gb=1,
    )
    return run.run(chosen, QUICK, log_dir=folder / "logs", port_file=port_file, parent=None)


def test_an_endless_crash_is_told_with_status_1(
    vllm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    give_orders(vllm, mode="crash")
    addresses = tmp_path / "addresses"
    addresses.write_text("http://of.an.earlier.start\n")
    assert run_here(vllm, tmp_path, addresses) == 1
    told = capsys.readouterr().err
    assert "failed 3 times without becoming ready" in told
    assert "no memory is left for the key and value cache" in told
    assert not addresses.exists()  # nobody waits for a judge that never judged


def test_the_cause_of_a_crash_is_told_though_it_stands_far_above_the_end_of_the_log(
    vllm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    give_orders(vllm, mode="crash", said=ENGINE_LOG)
    assert run_here(vllm, tmp_path) == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert (
        "ended with status 1 (torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.)"
        in first
    )


def test_problems_are_told_together_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executable = write_installation(tmp_path / "env", SERVER, {"vllm": "0.31.0", "transformers": "5.23.0"})
    assert run_here(executable, tmp_path) == 2
    told = capsys.readouterr().err
    assert "vLLM is 0.31.0" in told
    assert "transformers is 5.23.0" in told
    assert "is a build for GPUs" in told
    assert not list(executable.parent.glob("starts-*"))
