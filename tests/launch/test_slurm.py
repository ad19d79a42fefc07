"""launch/slurm.sbatch: a judge and a trainer on every node, stops and dry runs."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.launch.stand_ins import command, environment, notes, start, wait_for
from tests.patience import GUARD_S


def test_slurm_makes_a_key_for_its_own_judges_alone(node: Path) -> None:
    (node / "bin" / "srun").write_text('#!/bin/bash\necho "key=${VCAP_JUDGE_KEY-none}" >> "$NOTES"\n')
    own = start(node, "slurm.sbatch", SLURM_JOB_NODELIST="node-1")
    assert own.returncode == 0, own.stderr
    assert len(notes(node)[0]) == len("key=") + 48
    assert len(set(notes(node))) == 1
    (node / "notes").unlink()
    far = start(node, "slurm.sbatch", "--judge-url", "http://far:8000", SLURM_JOB_NODELIST="node-1")
    assert far.returncode == 0, far.stderr
    assert set(notes(node)) == {"key=none"}
    (node / "notes").unlink()
    # A node without a GPU for one: what a file names is asked with its own key.
    none = start(node, "slurm.sbatch", "--target", "h100x1", SLURM_JOB_NODELIST="node-1")
    assert none.returncode == 0, none.stderr
    assert set(notes(node)) == {"key=none"}


def test_slurm_has_trainers_wait_for_the_slowest_judge(node: Path) -> None:
    done = start(node, "slurm.sbatch", "--dry-run", "--judge-timeout", "2400")
    run = next(line for line in done.stdout.splitlines() if line.strip().startswith("run  "))
    assert "distributed.start_timeout_s=2400" in run
    assert "--judge-timeout 2400" in run


def test_slurm_gives_every_node_a_judge_and_every_trainer_all_judges(node: Path) -> None:
    done = start(node, "slurm.sbatch", "--dry-run", "--modality", "video")
    assert done.returncode == 0, done.stdout + done.stderr
    run = next(line for line in done.stdout.splitlines() if line.strip().startswith("run  "))
    for url in ("NODE-1:8000", "NODE-1:8001", "NODE-2:8000", "NODE-2:8001"):
        assert f"--judge-url http://{url}" in run
    assert "distributed.processes=2" in run
    assert "SLURM_PROCID" in run
    assert "rollout.groups_per_batch=12 grpo.groups_per_micro_batch=12" in done.stdout
    far = start(node, "slurm.sbatch", "--dry-run", "--judge-url", "http://far:8000")
    assert "--policy-gpus 0\\,1\\,2\\,3\\,4\\,5\\,6\\,7" in far.stdout
    # Of images, two on each of 16: a step has no more.
    assert "rollout.groups_per_batch=32 grpo.groups_per_micro_batch=16" in far.stdout
    missing = start(node, "slurm.sbatch", "--modality", "video")
    assert missing.returncode == 2
    assert "inside a SLURM job" in missing.stderr


@pytest.mark.slow
def test_groups_of_one_caption_are_as_many_as_the_others_on_several_nodes(node: Path) -> None:
    """What fits on one node is not cut over the GPUs of four: 12 groups on 24 GPUs were refused there."""
    four = {"NODES": "node-1 node-2 node-3 node-4", "SLURM_JOB_NODELIST": "node-[1-4]"}
    done = start(node, "slurm.sbatch", "--dry-run", "--modality", "video", **four)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rollout.groups_per_batch=24 grpo.groups_per_micro_batch=24" in done.stdout
    assert "single_groups" not in done.stdout
    one = start(node, "slurm.sbatch", "--dry-run", "--modality", "video", SLURM_JOB_NODELIST="node-1")
    assert "grpo.groups_per_micro_batch=6 rollout.single_groups=12" in one.stdout
    said = start(node, "slurm.sbatch", "--dry-run", "--", "rollout.single_groups=24", **four)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("trainer env ") == 1
    assert (
        "grpo.groups_per_micro_batch=24 distributed.start_timeout_s=1800 rollout.single_groups=24"
        in said.stdout
    )


def job(node: Path, *more: str, **variables: str) -> subprocess.Popen[str]:
    """The batch script on two nodes."""
    slurm = {"NODES": "node-1 node-2", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_JOB_ID": "77"}
    return subprocess.Popen(
        command(node, "slurm.sbatch", *more),
        env=environment(node, **slurm, SLURM_CPUS_PER_TASK="48", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("sent", "queued"),
    [(signal.SIGUSR1, True), pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow)],
    ids=["at the time limit", "by somebody"],
)
def test_a_stop_by_slurm_lets_the_trainers_of_all_nodes_save(node: Path, sent: int, queued: bool) -> None:
    """At its time limit the job queues itself again; who ends it does not want that."""
    process = job(node, VCAP_REQUEUE="1", TRAINER_SECONDS="600")
    wait_for(node, "trainer --", times=2)
    process.send_signal(sent)
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 143, output
    seen = notes(node)
    assert seen.count("trainer ended by SIGTERM") == seen.count("judge ended by SIGTERM") == 2, output
    assert "tasks killed" not in seen
    assert (seen[-1] == "scontrol requeue 77") == ("scontrol requeue 77" in seen) == queued
    for call in (node / "notes.srun").read_text().splitlines():
        assert "--cpus-per-task=48" in call


@pytest.mark.slow
def test_nodes_that_share_a_run_folder_share_no_judge_and_no_log(node: Path) -> None:
    process = job(node, TRAINER_SECONDS="0.5")
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, output
    for name in ("node-1", "node-2"):
        logs = node / "run.logs" / name
        assert {file.name for file in logs.iterdir()} == {"judge.addresses", "judge.log", "train.log"}
        # A step is a line, whole, of this node's trainer alone.
        assert set((logs / "train.log").read_text().splitlines()) == {"a step"}
    assert "scontrol requeue" not in "".join(notes(node))


def test_a_dry_run_of_a_job_checks_what_can_be_checked_anywhere(node: Path) -> None:
    for tool in ("srun", "scancel", "scontrol", "nvidia-smi", "curl"):
        (node / "bin" / tool).unlink()
    done = start(node, "slurm.sbatch", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "32 images" in done.stdout
    misspelt = start(node, "slurm.sbatch", "--dry-run", "--modaliti", "video")
    assert misspelt.returncode == 2
    assert "--modaliti is no option" in misspelt.stderr
    absent = start(node, "slurm.sbatch", "--dry-run", "--model", "/none")
    assert absent.returncode == 2
    assert "- policy checkpoint /none" in absent.stderr
    six = ("rollout.groups_per_batch=6", "grpo.groups_per_micro_batch=6")
    uneven = start(node, "slurm.sbatch", "--dry-run", "--", *six)
    assert "a multiple of 12" in uneven.stderr
    # Of a job that waits for days, no node need say so.
    wrong = start(node, "slurm.sbatch", "--dry-run", "--judge-option", "--quantisation=fp8")
    assert wrong.returncode == 2
    assert "- options of the judge" in wrong.stderr
    twice = start(node, "slurm.sbatch", "--dry-run", "--judge-gpus", "5,6")
    assert "- no GPU is given twice" in twice.stderr
    text = start(node, "slurm.sbatch", "--help")
    assert text.returncode == 0
    assert "--judge-gpus LIST" in text.stdout


def test_judges_that_share_gpus_are_asked_at_as_many_ports(node: Path) -> None:
    together = ("--judge-tensor-parallel", "2", "--judge-option", "--quantization=fp8")
    done = start(node, "slurm.sbatch", "--dry-run", *together)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--judge-url http://NODE-1:8000 --judge-url http://NODE-2:8000 " in done.stdout
    assert "--tensor-parallel-size 2" in done.stdout
    assert "--quantization=fp8" in done.stdout


def test_what_is_for_one_node_or_no_number_is_refused_by_name(node: Path) -> None:
    turns = start(node, "slurm.sbatch", "--dry-run", "--judge-turns")
    assert turns.returncode == 2
    assert "--judge-turns is for one node" in turns.stderr
    port = start(node, "slurm.sbatch", "--dry-run", "--judge-port", "8k")
    assert port.returncode == 2
    assert "error: --judge-port is 8k; give a whole number" in port.stderr
