"""Supervised fine-tuning and distillation by two processes, started as a user starts them, follow those by one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import MANIFEST, read_scenes, write_dataset

ROOT = Path(__file__).resolve().parent.parent
UNOPTIMISED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
SECONDS = 240


@dataclass(frozen=True)
class Command:
    """Processes that share one command, each with its own output file."""

    started: list[subprocess.Popen]
    outputs: list[Path]

    def output(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self.outputs)

    def wait(self) -> list[int]:
        deadline = time.monotonic() + SECONDS
        try:
            return [process.wait(max(deadline - time.monotonic(), 0.1)) for process in self.started]
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {SECONDS} s:\n{self.output()}")
        finally:
            for process in self.started:
                process.kill()


def start(script: str, *arguments: str, log: Path, processes: int = 1, devices: int = 1) -> Command:
    """``devices``: simulated, of each process."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{UNOPTIMISED} --xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(ROOT / "launch" / script), *arguments]
    shared = [f"distributed.coordinator=127.0.0.1:{port}", f"distributed.processes={processes}"]
    started, outputs = [], []
    for index in range(processes):
        own = [*shared, f"distributed.process_id={index}"] if processes > 1 else []
        outputs.append(log.with_suffix(f".{index}"))
        with outputs[-1].open("wb") as file:
            started.append(
                subprocess.Popen([*command, *own], env=environment, stdout=file, stderr=subprocess.STDOUT)
            )
    return Command(started, outputs)


def same_losses(here: Path, there: Path) -> None:
    """Row by row: the same captions learned, with losses and gradients as near as sums can be."""
    ours, theirs = (read_metrics(folder / "metrics.jsonl") for folder in (here, there))
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        one, other = deterministic(one), deterministic(other)
        # Each process pads its own prompts with one another, so what share of the positions is real may differ.
        assert one.keys() == other.keys()
        for name in one.keys() - {"positions/real"}:
            assert one[name] == pytest.approx(other[name], rel=1e-3), (name, one["step"])


@pytest.fixture
def captions(tmp_path: Path) -> list[str]:
    """Settings for a small set of pictures with one or two captions each."""
    write_dataset(tmp_path / "data", "image", "sft", 20, seed=0)
    rng = np.random.default_rng(0)
    ReferencePool(
        PoolEntry(id=identity, references=tuple(full_caption(scene, rng) for _ in range(1 + i % 2)))
        for i, (identity, scene) in enumerate(read_scenes(tmp_path / "data").items())
    ).write(tmp_path / "captions.jsonl")
    return [
        f"data.manifest={tmp_path / 'data' / MANIFEST}",
        f"sft.captions={tmp_path / 'captions.jsonl'}",
        f"compilation_cache={tmp_path / 'compiled'}",
        "sft.groups_per_step=8",
        "sft.groups_per_micro_batch=4",
        "sft.max_steps=24",
    ]


def test_supervised_runs_of_two_processes_and_of_one(captions, tmp_path):
    """Two processes are stopped in the middle; one goes on from their checkpoint."""
    alone = start("sft.py", "--run-dir", str(tmp_path / "alone"), *captions, log=tmp_path / "log-alone")
    folder = tmp_path / "shared"
    command = ["sft.py", "--resume", "--run-dir", str(folder), *captions]
    shared = start(*command, log=tmp_path / "log-shared", processes=2, devices=2)
    deadline = time.monotonic() + SECONDS
    while not (folder / "metrics.jsonl").exists() or not read_metrics(folder / "metrics.jsonl"):
        assert time.monotonic() < deadline, shared.output()
        assert all(process.poll() is None for process in shared.started), shared.output()
        time.sleep(0.02)
    # The second process is asked; both end after the same step.
    shared.started[1].send_signal(signal.SIGTERM)
    assert shared.wait() == [1, 1], shared.output()
    before = len(read_metrics(folder / "metrics.jsonl"))
    assert before < 24, shared.output()
    assert alone.wait() == [0], alone.output()

    last = start(*command, "mesh.fsdp=1", log=tmp_path / "log-last")
    assert last.wait() == [0], last.output()
    assert f"resuming after step {before} of 24" in last.output()
    same_losses(folder, tmp_path / "alone")
    assert json.loads((folder / "summary.json").read_text())["steps"] == 24


@pytest.mark.slow
def test_distillation_by_two_processes_and_by_one(tmp_path):
    """The same candidates, scores and choices, and a student with the same losses."""
    settings = [
        f"compilation_cache={tmp_path / 'compiled'}",
        "world.train_scenes=8",
        "world.heldout_scenes=4",
        "rollout.groups_per_batch=4",
        "rollout.max_completion_length=48",
        "grpo.groups_per_micro_batch=4",
        "sft.groups_per_step=4",
        "sft.groups_per_micro_batch=4",
        "sft.max_steps=3",
    ]
    folders = {count: tmp_path / f"by-{count}" for count in (1, 2)}
    for count, folder in folders.items():
        command = start(
            "distill.py",
            "--dir",
            str(folder),
            "--candidates",
            "3",
            *settings,
            log=tmp_path / f"log-{count}",
            processes=count,
            devices=count,
        )
        assert command.wait() == [0] * count, command.output()
    one, two = (folders[count] / "self" for count in (1, 2))
    for name in ("candidates.jsonl", "best.jsonl"):
        assert ReferencePool.read(one / name).digest() == ReferencePool.read(two / name).digest()
    assert (one / "scores.jsonl").read_text() == (two / "scores.jsonl").read_text()
    assert not list(two.glob("scores.jsonl.partial*"))
    assert (one / "heldout" / "teacher.jsonl").read_text() == (two / "heldout" / "teacher.jsonl").read_text()
    same_losses(one / "student", two / "student")
    told = [json.loads((folder / "summary.json").read_text()) for folder in folders.values()]
    assert told[0]["stages"]["self"]["weights"] == told[1]["stages"]["self"]["weights"]
    assert told[0]["stages"]["self"]["selection"] == told[1]["stages"]["self"]["selection"]
