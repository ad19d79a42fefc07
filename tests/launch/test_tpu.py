"""launch/tpu.sh: one host, and all hosts of a slice."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.launch.stand_ins import JUDGE_ELSEWHERE, ROOT, TPU, command, environment, notes, start, wait_for
from tests.patience import GUARD_S


def test_a_tpu_host_needs_a_tpu_and_a_judge(node: Path) -> None:
    done = start(node, "tpu.sh", "--dry-run")
    assert done.returncode == 2
    assert "- a TPU is attached" in done.stderr
    assert "- a judge is named: " in done.stderr
    assert "--judge-url or judge.urls names one" in done.stderr
    assert "- configuration" not in done.stderr
    (node / "own.yaml").write_text("judge: {urls: ['http://far:8000']}\n")
    for own in (("--config", str(node / "own.yaml")), ("--", "reward.family=random")):
        named = start(node, "tpu.sh", "--dry-run", *own)
        assert "a judge is named" not in named.stderr
        assert "judge.urls" not in named.stdout
    cpu = start(node, "tpu.sh", "--dry-run", JAX_SEES="cpu 1")
    assert "computes on TPUs" in cpu.stderr


SLICE = ("--slice", "big", "--zone", "z")


def test_a_slice_gets_the_same_command_on_every_host(node: Path) -> None:
    key = str(node / "key")
    arguments = ("--judge-url", "http://far:8000", "--judge-key-file", key, "--dry-run")
    done = start(node, "tpu.sh", *SLICE, *arguments)
    assert done.returncode == 0, done.stderr
    assert "--worker=all" in notes(node)
    sent = shlex.split(notes(node)[-1])
    assert "--pod" in sent
    assert sent[sent.index("--judge-key-file") + 1] == key
    assert "--dry-run" in sent


def test_a_key_is_not_sent_through_gcloud_which_logs_what_it_is_told(node: Path) -> None:
    done = start(node, "tpu.sh", *SLICE, "--judge-url", "http://far:8000", VCAP_JUDGE_KEY="secret")
    assert done.returncode == 2
    assert "--judge-key-file" in done.stderr
    assert "secret" not in done.stdout + done.stderr
    assert notes(node) == []


def test_a_key_file_is_read_on_the_host_and_its_content_is_not_shown(node: Path) -> None:
    (node / "key").write_text("secret\n")
    done = start(node, "tpu.sh", "--dry-run", "--judge-key-file", str(node / "key"))
    assert "judge.api_key_env=VCAP_JUDGE_KEY" in done.stdout
    assert "secret" not in done.stdout + done.stderr
    absent = start(node, "tpu.sh", "--dry-run", "--judge-key-file", str(node / "absent"))
    assert "- --judge-key-file" in absent.stderr


def test_stopping_a_slice_reaches_the_trainer_of_each_host(node: Path) -> None:
    done = start(node, "tpu.sh", *SLICE, "--remote-dir", str(ROOT), "--stop")
    assert done.returncode == 0, done.stderr
    sent = notes(node)[-1]
    (node / "notes").unlink()
    process = subprocess.Popen(
        command(node, "tpu.sh", *JUDGE_ELSEWHERE),
        env=environment(node, **TPU),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(node, "on=tpu,cpu")
    again = start(node, "tpu.sh", *JUDGE_ELSEWHERE, "--dry-run", **TPU)
    assert "no trainer of" in again.stderr
    subprocess.run(["bash", "-c", sent], env=environment(node), check=True)
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 143
    assert notes(node)[-1] == "trainer ended by SIGTERM"
    assert output.splitlines()[-1] == "saving", "what the trainer says last is shown"


def test_a_process_that_took_the_number_of_a_trainer_is_left_alone(node: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    logs = node / "run.logs"
    logs.mkdir()
    (logs / "train-here.pid").write_text(f"{stranger.pid}\n")
    done = start(node, "tpu.sh", "--stop")
    assert done.returncode == 1
    assert "no trainer of" in done.stderr
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_run_folder_in_quotes_is_at_home_on_the_host_that_trains(node: Path) -> None:
    there = ("--run-dir", "~/run", "--stop")
    on_the_host = start(node, "tpu.sh", *there, HOME=str(node))
    assert f"no trainer of {node / 'run'} runs" in on_the_host.stderr
    on_a_slice = start(node, "tpu.sh", *SLICE, *there, HOME="/elsewhere")
    assert on_a_slice.returncode == 0, on_a_slice.stderr
    sent = shlex.split(notes(node)[-1])
    assert sent[sent.index("--run-dir") + 1] == "~/run"


def test_a_trainer_is_found_however_its_run_folder_is_written(node: Path) -> None:
    """--stop looked for its number in another folder where one of the two had a slash at its end."""
    written = ("--run-dir", f"{node / 'run'}/")
    process = subprocess.Popen(
        command(node, "tpu.sh", *JUDGE_ELSEWHERE, *written),
        env=environment(node, **TPU),
        stdout=subprocess.DEVNULL,
    )
    wait_for(node, "on=tpu,cpu")
    done = start(node, "tpu.sh", "--stop")
    if done.returncode:
        process.terminate()
    process.wait(timeout=GUARD_S)
    assert done.returncode == 0, done.stderr
    assert notes(node)[-1] == "trainer ended by SIGTERM"
