"""The scripts for real hardware: checks, what a dry run prints, and the order in which processes begin and end.

A folder of stand-ins takes the place of what this machine lacks: nvidia-smi, SLURM, gcloud, and a Python whose judge
and trainer only note how they were called. The configuration is checked by the real launch/train.py.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import stat
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    *sorted((ROOT / "launch").glob("*.sh")),
    ROOT / "launch" / "slurm.sbatch",
    ROOT / "tests" / "run.sh",
]

NVIDIA_SMI = """#!/bin/bash
case "$*" in
  *compute-apps*) if [[ -n $BUSY && $* == *--id=$BUSY* ]]; then echo 4242; fi ;;
  *--id=*) id=${1#--id=}; ((id < 8)) && echo H800 ;;
esac
"""

PYTHON = """#!{python}
import os, pathlib, signal, sys, time
words, notes = sys.argv[1:], pathlib.Path(os.environ["NOTES"])
def note(text):
    with notes.open("a") as file:
        file.write(text + "\\n")
if words[0] == "-c":
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
    kind = {{"cuda,cpu": "gpu", "tpu,cpu": "tpu"}}[os.environ["JAX_PLATFORMS"]]
    print(os.environ.get("JAX_SEES", f"{{kind}} {{len(seen)}}"))
    sys.exit(0)
if "--print" in words:
    sys.exit(0)
if "preflight.py" in words[0]:
    if "HOST_MEMORY" not in os.environ:  # this machine's is not what a node has
        words = [word for word in words if word != "--host-memory"]
    os.execv({python!r}, [{python!r}, *words])
name = "judge" if "serve.py" in words[0] else "trainer"
platforms = os.environ["JAX_PLATFORMS"]
def end(*_):
    print("saving", flush=True)
    note(name + " ended by SIGTERM")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
note(name + " " + " ".join(words[1:]) + " GPUs=" + os.environ.get("CUDA_VISIBLE_DEVICES", "") + " on=" + platforms)
if name == "judge":
    if os.environ.get("JUDGE") == "dies":
        print("no memory on GPU 7"); sys.exit(3)
    time.sleep(0.5)
    pathlib.Path(words[words.index("--port-file") + 1]).write_text("http://127.0.0.1:8000\\n")
    note("judge ready")
    time.sleep(60)
for _ in range(round(float(os.environ.get("TRAINER_SECONDS", 60)) * 10)):
    time.sleep(0.1)
    print("a step", flush=True)
note("trainer done")
"""

# As the real one (srun_job.c): a task on every node, and SIGTERM is SIGKILL for all of them.
SRUN = """#!/bin/bash
echo "srun $*" >> "$NOTES.srun"
while [[ $1 == --* ]]; do shift; done
tasks=()
for host in ${NODES:-node-1}; do
  SLURM_PROCID=${#tasks[@]} NODE=$host setsid "$@" &
  tasks+=($!)
  echo $! >> "$NOTES.tasks"
done
trap 'kill -KILL "${tasks[@]}"; echo "tasks killed" >> "$NOTES"; exit 137' TERM
status=0
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit $status
"""
SCANCEL = """#!/bin/bash
[[ $* == "--signal=TERM 77" ]] && kill -TERM $(<"$NOTES.tasks") 2>/dev/null
true
"""
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then printf '%s\\n' ${NODES:-node-1}; else echo "scontrol $*" >> "$NOTES"; fi
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder with the stand-ins in bin/, a checkpoint and a manifest."""
    for name, text in {
        "nvidia-smi": NVIDIA_SMI,
        "python": PYTHON.format(python=sys.executable),
        "curl": "#!/bin/bash\n[[ -z $JUDGE_DOWN ]]\n",
        "hostname": "#!/bin/bash\necho ${NODE:-here}\n",
        "srun": SRUN,
        "scancel": SCANCEL,
        "scontrol": SCONTROL,
        "gcloud": '#!/bin/bash\nprintf "%s\\n" "$@" > "$NOTES"\n',
    }.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "a.png").touch()
    (tmp_path / "b.mp4").touch()
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "image": "a.png"}\n{"id": "b", "video": "b.mp4"}\n')
    return tmp_path


def command(node: Path, script: str, *more: str) -> list[str]:
    return [
        "bash",
        str(ROOT / "launch" / script),
        *("--model", str(node / "model")),
        *("--manifest", str(node / "rows.jsonl")),
        *("--run-dir", str(node / "run")),
        *("--python", str(node / "bin" / "python")),
        *more,
    ]


def environment(node: Path, **more: str) -> dict[str, str]:
    path = f"{node / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NOTES": str(node / "notes"), "JAX_PLATFORMS": "cpu", **more}


def start(node: Path, script: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(node, script, *more),
        env=environment(node, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def notes(node: Path) -> list[str]:
    path = node / "notes"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(node: Path, text: str, times: int = 1) -> None:
    deadline = time.monotonic() + 120
    while sum(text in line for line in notes(node)) < times:
        assert time.monotonic() < deadline, f"{text!r} did not come; the notes are {notes(node)}"
        time.sleep(0.1)


def test_every_script_passes_shellcheck() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_dry_run_prints_everything_and_starts_nothing(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--dry-run", "--", "optimizer.learning_rate=1e-6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was started" in done.stdout
    assert "PROBLEM" not in done.stdout
    assert "--gpus 6\\,7" in done.stdout
    assert "CUDA_VISIBLE_DEVICES=0\\,1\\,2\\,3\\,4\\,5" in done.stdout
    assert "http://127.0.0.1:8000\\,http://127.0.0.1:8001" in done.stdout
    assert "optimizer.learning_rate=1e-6" in done.stdout
    assert "rollout.groups_per_batch=6 grpo.groups_per_micro_batch=6" in done.stdout
    assert notes(node) == []
    assert not (node / "run.logs").exists()


def test_groups_are_as_many_as_policy_gpus_unless_the_user_says_otherwise(node: Path) -> None:
    arguments = ("--dry-run", "--policy-gpus", "0,1,2,3")
    four = start(node, "h800_8x.sh", *arguments)
    assert "rollout.groups_per_batch=4 grpo.groups_per_micro_batch=4" in four.stdout
    more = start(node, "h800_8x.sh", *arguments, "--", "rollout.groups_per_batch=12")
    assert more.returncode == 0, more.stderr
    assert "grpo.groups_per_micro_batch=4 rollout.groups_per_batch=12" in more.stdout
    assert more.stdout.count("groups_per_batch=") == four.stdout.count("groups_per_batch=")
    file = node / "own.yaml"
    file.write_text("rollout: {groups_per_batch: 8}\n")
    own = start(node, "h800_8x.sh", *arguments, "--config", str(file))
    assert own.returncode == 0, own.stderr
    assert "rollout.groups_per_batch=4" in own.stdout


def test_files_are_laid_over_the_papers_configuration(node: Path) -> None:
    """One alone would leave the tiny model's settings: nothing recomputed, pictures of any size."""
    files = [str(ROOT / "configs" / name) for name in ("lora.yaml", "updates/rloo.yaml")]
    for script, own in (("h800_8x.sh", "paper"), ("slurm.sbatch", "paper")):
        done = start(node, script, "--dry-run", "--config", files[0], "--config", files[1])
        assert done.returncode == 0, done.stderr
        assert f"--config configs/{own}/image.yaml --config {files[0]} --config {files[1]}" in done.stdout


def test_groups_that_some_gpus_would_not_share_are_refused(node: Path) -> None:
    eight = ("rollout.groups_per_batch=8", "grpo.groups_per_micro_batch=8")
    done = start(node, "h800_8x.sh", "--dry-run", "--", *eight)
    assert done.returncode == 2
    assert "groups_per_micro_batch=8 would have every device compute" in done.stderr
    assert "a multiple of 6" in done.stderr


def test_jax_that_computes_on_the_cpu_is_refused(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--dry-run", JAX_SEES="cpu 1")
    assert done.returncode == 2
    assert "computes on 6 GPUs" in done.stderr
    fewer = start(node, "h800_8x.sh", "--dry-run", JAX_SEES="gpu 5")
    assert "computes on 6 GPUs" in fewer.stderr


def test_the_memory_of_the_host_is_checked(node: Path) -> None:
    """22.8 GiB for each of 6 GPUs wait there, and two judges cache videos in 32 GiB each."""
    sizes = '{"text_config": {"num_hidden_layers": 36, "hidden_size": 4096}}'
    (node / "model" / "config.json").write_text(sizes)
    done = start(node, "h800_8x.sh", "--dry-run", "--modality", "video", HOST_MEMORY="1")
    assert "201 GiB of this host's memory" in done.stdout


def test_a_row_that_cannot_be_read_is_told_before_anything_starts(node: Path) -> None:
    with (node / "rows.jsonl").open("a") as rows:
        rows.write('{"image": "a.png"}\n')
    done = start(node, "h800_8x.sh")
    assert done.returncode == 2
    assert 'rows.jsonl:3: "id" must be' in done.stderr
    assert notes(node) == []


def test_a_run_is_a_policy_to_start_from(node: Path) -> None:
    (node / "model" / "config.json").rename(node / "origin.json")
    (node / "origin").mkdir()
    (node / "origin.json").rename(node / "origin" / "config.json")
    (node / "model" / "config.yaml").write_text(f"model: {{path: {node / 'origin'}}}\n")
    assert "- policy checkpoint" in start(node, "h800_8x.sh", "--dry-run").stderr
    (node / "model" / "checkpoints").mkdir()
    done = start(node, "h800_8x.sh", "--dry-run")
    assert done.returncode == 0, done.stderr


def test_all_problems_are_told_at_once(node: Path) -> None:
    (node / "model" / "config.json").unlink()
    done = start(
        node, "h800_8x.sh", "--dry-run", "--judge-gpus", "5,9", "--", "optimizer.learning_rat=1", BUSY="3"
    )
    assert done.returncode == 2
    for told in (
        "GPU 9 exists",
        "GPU 3 is idle",
        "no GPU is given twice",
        "policy checkpoint",
        "configuration",
    ):
        assert f"- {told}" in done.stderr
    assert "- GPU 2" not in done.stderr


def test_a_judge_elsewhere_leaves_all_gpus_to_the_policy(node: Path) -> None:
    arguments = ("--dry-run", "--judge-url", "http://far:8000")
    done = start(node, "h800_8x.sh", *arguments)
    assert done.returncode == 0, done.stderr
    assert "serve.py" not in done.stdout
    assert "0\\,1\\,2\\,3\\,4\\,5\\,6\\,7" in done.stdout
    down = start(node, "h800_8x.sh", *arguments, JUDGE_DOWN="1")
    assert "judge at http://far:8000 answers" in down.stderr


def test_a_run_starts_the_judge_first_and_ends_it_last(node: Path) -> None:
    done = start(node, "h800_8x.sh", TRAINER_SECONDS="0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = notes(node)
    assert [line.split()[0] for line in seen] == ["judge", "judge", "trainer", "trainer", "judge"]
    assert seen[1] == "judge ready"
    assert seen[2].endswith("GPUs=0,1,2,3,4,5 on=cuda,cpu")
    assert "a step" in done.stdout, "what the trainer says is shown"
    assert "a step" in (node / "run.logs" / "here" / "train.log").read_text()
    assert seen[3:] == ["trainer done", "judge ended by SIGTERM"]


def test_a_signal_lets_the_trainer_save_before_the_judge_goes(node: Path) -> None:
    process = subprocess.Popen(
        command(node, "h800_8x.sh"), env=environment(node), stdout=subprocess.PIPE, text=True
    )
    wait_for(node, "GPUs=0,1")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert notes(node)[-2:] == ["trainer ended by SIGTERM", "judge ended by SIGTERM"]
    assert "run this command again to go on" in output


def test_ctrl_c_reaches_the_whole_group_and_still_ends_both_in_order(node: Path) -> None:
    process = subprocess.Popen(
        command(node, "h800_8x.sh"),
        env=environment(node),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(node, "GPUs=0,1")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert notes(node)[-2:] == ["trainer ended by SIGTERM", "judge ended by SIGTERM"]
    assert "saving" in output
    assert "run this command again to go on" in output


def test_a_judge_that_cannot_start_ends_the_run_with_its_reason(node: Path) -> None:
    done = start(node, "h800_8x.sh", JUDGE="dies")
    assert done.returncode == 1
    assert "no memory on GPU 7" in done.stdout
    assert not any("trainer" in line for line in notes(node))


def test_a_misspelt_option_is_refused(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--modaliti", "video")
    assert done.returncode == 2
    assert "--modaliti is no option" in done.stderr


def test_a_judge_that_listens_elsewhere_is_asked_there(node: Path) -> None:
    arguments = ("--dry-run", "--judge-gpus", "7", "--judge-host")
    named = start(node, "h800_8x.sh", *arguments, "10.0.0.5", VCAP_JUDGE_KEY="secret")
    assert named.returncode == 0, named.stderr
    assert "http://10.0.0.5:8000" in named.stdout
    everywhere = start(node, "h800_8x.sh", *arguments, "0.0.0.0", VCAP_JUDGE_KEY="secret")
    assert "http://127.0.0.1:8000" in everywhere.stdout
    assert "secret" not in named.stdout + everywhere.stdout


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
    assert "rollout.groups_per_batch=12 grpo.groups_per_micro_batch=12" in run
    assert "SLURM_PROCID" in run
    far = start(node, "slurm.sbatch", "--dry-run", "--judge-url", "http://far:8000")
    assert "--policy-gpus 0\\,1\\,2\\,3\\,4\\,5\\,6\\,7" in far.stdout
    assert "rollout.groups_per_batch=16" in far.stdout
    missing = start(node, "slurm.sbatch", "--modality", "video")
    assert missing.returncode == 2
    assert "inside a SLURM job" in missing.stderr


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


def test_a_stop_by_slurm_lets_the_trainers_of_all_nodes_save(node: Path) -> None:
    process = job(node, VCAP_REQUEUE="1", TRAINER_SECONDS="30")
    wait_for(node, "trainer --", times=2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    seen = notes(node)
    assert seen.count("trainer ended by SIGTERM") == seen.count("judge ended by SIGTERM") == 2, output
    assert "tasks killed" not in seen
    assert seen[-1] == "scontrol requeue 77"
    for call in (node / "notes.srun").read_text().splitlines():
        assert "--cpus-per-task=48" in call


def test_nodes_that_share_a_run_folder_share_no_judge_and_no_log(node: Path) -> None:
    process = job(node, TRAINER_SECONDS="0.5")
    output, _ = process.communicate(timeout=120)
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
    assert "1 images" in done.stdout
    misspelt = start(node, "slurm.sbatch", "--dry-run", "--modaliti", "video")
    assert misspelt.returncode == 2
    assert "--modaliti is no option" in misspelt.stderr
    absent = start(node, "slurm.sbatch", "--dry-run", "--model", "/none")
    assert absent.returncode == 2
    assert "- policy checkpoint /none" in absent.stderr
    six = ("rollout.groups_per_batch=6", "grpo.groups_per_micro_batch=6")
    uneven = start(node, "slurm.sbatch", "--dry-run", "--", *six)
    assert "a multiple of 12" in uneven.stderr
    text = start(node, "slurm.sbatch", "--help")
    assert text.returncode == 0
    assert "--judge-gpus LIST" in text.stdout


# On a machine without one.
TPU = {"BASH_FUNC_compgen%%": "() { true; }"}
JUDGE_ELSEWHERE = ("--judge-url", "http://far:8000")


@pytest.mark.parametrize("script", ["h800_8x.sh", "tpu.sh"])
def test_a_run_outlives_its_terminal(node: Path, script: str) -> None:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command(node, script, *JUDGE_ELSEWHERE),
        env=environment(node, TRAINER_SECONDS="4", **TPU),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    wait_for(node, "trainer --")
    os.close(master)
    assert process.wait(timeout=60) == 0
    assert notes(node)[-1] == "trainer done"


def test_a_tpu_host_needs_a_tpu_and_a_judge(node: Path) -> None:
    done = start(node, "tpu.sh", "--dry-run")
    assert done.returncode == 2
    assert "- a TPU is attached" in done.stderr
    assert "- --judge-url is given" in done.stderr
    assert "- configuration" not in done.stderr
    cpu = start(node, "tpu.sh", "--dry-run", JAX_SEES="cpu 1")
    assert "computes on TPUs" in cpu.stderr


SLICE = ("--slice", "big", "--zone", "z")


def test_a_slice_gets_the_same_command_on_every_host(node: Path) -> None:
    key = str(node / "key")
    arguments = ("--judge-url", "http://far:8000", "--judge-key-file", key, "--dry-run")
    done = start(node, "tpu.sh", *SLICE, *arguments)
    assert done.returncode == 0, done.stderr
    sent = "\n".join(notes(node))
    assert "--worker=all" in sent
    assert "--pod" in sent
    assert f"--judge-key-file {key}" in sent
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
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert notes(node)[-1] == "trainer ended by SIGTERM"
    assert output.splitlines()[-1] == "saving", "what the trainer says last is shown"


def test_a_process_that_took_the_number_of_a_trainer_is_left_alone(node: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    logs = node / "run.logs"
    logs.mkdir()
    (logs / "train-here.pid").write_text(f"{stranger.pid}\n")
    done = start(node, "tpu.sh", "--stop")
    assert done.returncode == 1
    assert "no trainer of" in done.stderr
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
