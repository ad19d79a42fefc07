"""Supervised fine-tuning and distillation by two processes, started as a user starts them, follow those by one, which
is this one."""

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

from tests import quick_compile
from vcap_jax.configuration import load_config
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.recipes.distill import Teacher, distill
from vcap_jax.recipes.sft import run_sft
from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.run.config import RunConfig
from vcap_jax.run.folders import MAY_DIFFER
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import MANIFEST, read_scenes, write_dataset

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900
STEPS = 16


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


def start(script: str, *arguments: str, log: Path, processes: int = 2, devices: int = 2) -> Command:
    """``devices``: simulated, of each process."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*quick_compile.flags(), f"--xla_force_host_platform_device_count={devices}"]),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(ROOT / "launch" / script), *arguments]
    shared = [f"distributed.coordinator=127.0.0.1:{port}", f"distributed.processes={processes}"]
    started, outputs = [], []
    for index in range(processes):
        own = [*shared, f"distributed.process_id={index}"]
        outputs.append(log.with_suffix(f".{index}"))
        with outputs[-1].open("wb") as file:
            started.append(
                subprocess.Popen([*command, *own], env=environment, stdout=file, stderr=subprocess.STDOUT)
            )
    return Command(started, outputs)


def opened(folder: Path, settings: list[str]) -> tuple[RunConfig, RunFolder]:
    """The same settings for this process, on one device."""
    config = load_config(
        RunConfig, [ROOT / "configs" / "embedded" / "image.yaml"], [*settings, "mesh.fsdp=1"]
    )
    return config, RunFolder.open(folder, config, resume=True, may_differ=MAY_DIFFER)


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
        "sft.groups_per_step=8",
        "sft.groups_per_micro_batch=4",
        f"sft.max_steps={STEPS}",
    ]


# Half a minute of both cores, and little of its own: processes that meet, one that is lost, and a run that goes on
# elsewhere are tried by parallel/test_several_processes.py each time, supervised training by recipes/test_sft.py.
@pytest.mark.long
def test_supervised_runs_of_two_processes_and_of_one(captions, tmp_path):
    """Two processes are stopped in the middle; one goes on from their checkpoint."""
    folder = tmp_path / "shared"
    shared = start("sft.py", "--run-dir", str(folder), *captions, log=tmp_path / "log")
    deadline = time.monotonic() + SECONDS
    while not (folder / "metrics.jsonl").exists() or not read_metrics(folder / "metrics.jsonl"):
        assert time.monotonic() < deadline, shared.output()
        assert all(process.poll() is None for process in shared.started), shared.output()
        time.sleep(0.02)
    # The second process is asked; both end after the same step.
    shared.started[1].send_signal(signal.SIGTERM)
    assert shared.wait() == [128 + signal.SIGINT, 128 + signal.SIGTERM], shared.output()
    before = len(read_metrics(folder / "metrics.jsonl"))
    assert before < STEPS, shared.output()
    assert f"stopped after step {before} of {STEPS}, which is saved; go on with:" in shared.output()

    said: list[str] = []
    run_sft(*opened(folder, captions), say=said.append)
    assert f"resuming after step {before} of {STEPS}" in said
    run_sft(*opened(tmp_path / "alone", captions), say=lambda _: None)
    same_losses(folder, tmp_path / "alone")
    assert json.loads((folder / "summary.json").read_text())["steps"] == STEPS


@pytest.mark.long
def test_distillation_by_two_processes_and_by_one(tmp_path):
    """The same candidates, scores and choices, and a student with the same losses."""
    settings = [
        "world.train_scenes=8",
        "world.heldout_scenes=4",
        "rollout.groups_per_batch=4",
        "rollout.max_completion_length=48",
        "grpo.groups_per_micro_batch=4",
        "sft.groups_per_step=4",
        "sft.groups_per_micro_batch=4",
        "sft.max_steps=3",
    ]
    folders = tmp_path / "by-one", tmp_path / "by-two"
    shared = start(
        "distill.py", "--dir", str(folders[1]), "--candidates", "3", *settings, log=tmp_path / "log"
    )
    config, folder = opened(folders[0], settings)
    distill(config, folder, [Teacher(name="self")], candidates=3, say=lambda _: None)
    assert shared.wait() == [0, 0], shared.output()
    one, two = (folder / "self" for folder in folders)
    for name in ("candidates.jsonl", "best.jsonl"):
        assert ReferencePool.read(one / name).digest() == ReferencePool.read(two / name).digest()
    assert (one / "scores.jsonl").read_text() == (two / "scores.jsonl").read_text()
    assert not list(two.glob("scores.jsonl.partial*"))
    for name in ("teacher.jsonl", "teacher.items.jsonl", "teacher.json"):
        ours, theirs = (RunFolder(stage).evaluation("heldout") / name for stage in (one, two))
        assert ours.read_text() == theirs.read_text()
    same_losses(one / "student", two / "student")
    told = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    assert told[0]["stages"]["self"]["weights"] == told[1]["stages"]["self"]["weights"]
    assert told[0]["stages"]["self"]["selection"] == told[1]["stages"]["self"]["selection"]
