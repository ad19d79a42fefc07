"""launch/h800_8x.sh: checks, what a dry run prints, and the order in which judge and trainer begin and end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_judge.options import parse_arguments, serve_settings
from tests.launch import preflight_server
from tests.launch.stand_ins import JUDGE_ELSEWHERE, ROOT, command, environment, notes, start, wait_for
from tests.patience import GUARD_S
from tests.signals import in_foreground
from vcap_jax.parallel.sharding import flag_for_odd_meshes
from vcap_jax.world.backbone import BACKBONE_FOLDER


def test_a_dry_run_prints_everything_and_starts_nothing(node: Path) -> None:
    """With launch/preflight.py started as a user's is; the other tests share its imports."""
    anew = {preflight_server.ADDRESS: ""}
    done = start(node, "h800_8x.sh", "--dry-run", "--", "optimizer.learning_rate=1e-6", **anew)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was started" in done.stdout
    assert "PROBLEM" not in done.stdout
    assert "--gpus 6\\,7" in done.stdout
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0\\,1\\,2\\,3\\,4\\,5" in done.stdout
    assert "http://127.0.0.1:8000\\,http://127.0.0.1:8001" in done.stdout
    assert "optimizer.learning_rate=1e-6" in done.stdout
    assert "rollout.groups_per_batch=18 grpo.groups_per_micro_batch=6" in done.stdout
    assert notes(node) == []
    assert not (node / "run.logs").exists()


@pytest.mark.long
def test_more_groups_decode_at_once_where_the_state_is_cut_over_more_gpus(node: Path) -> None:
    def groups(*arguments: str) -> tuple[str, ...]:
        done = start(node, "h800_8x.sh", "--dry-run", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.search(
            r"rollout.groups_per_batch=(\d+) grpo.groups_per_micro_batch=(\d+) rollout.single_groups=(\d+)",
            done.stdout,
        )
        assert found is not None
        return found.groups()

    assert groups() == ("18", "6", "48")
    fewer = start(node, "h800_8x.sh", "--dry-run", "--", "rollout.groups_per_batch=6")
    assert "single_groups" not in fewer.stdout
    assert groups("--modality", "video") == ("6", "6", "12")
    far = ("--judge-url", "http://far:8000")
    assert groups(*far) == ("32", "8", "96")
    assert groups(*far, "--modality", "video") == ("16", "8", "32")


@pytest.mark.slow
def test_xla_has_the_flag_that_an_odd_number_of_parts_needs(node: Path) -> None:
    def trainer(*arguments: str, **variables: str) -> str:
        done = start(node, "h800_8x.sh", "--dry-run", *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("  trainer ")]
        return line

    flag = {"FLAG_FOR_ODD_MESHES": "--xla_odd=false", "XLA_FLAGS": "--xla_own=1"}
    assert "XLA_FLAGS=--xla_own=1\\ --xla_odd=false " in trainer(**flag)
    assert "XLA_FLAGS" not in trainer(*JUDGE_ELSEWHERE, **flag)  # eight GPUs
    assert "XLA_FLAGS" not in trainer(XLA_FLAGS="--xla_own=1")  # a JAX that needs none


@pytest.mark.slow
def test_the_installed_jax_is_asked_for_that_flag() -> None:
    asked = f"source launch/cluster.sh; flag_for_odd_meshes {shlex.quote(sys.executable)}"
    told = subprocess.run(["bash", "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told == flag_for_odd_meshes() + "\n"


def test_groups_are_as_many_as_policy_gpus_unless_the_user_says_otherwise(node: Path) -> None:
    arguments = ("--dry-run", "--policy-gpus", "0,1,2,3")
    four = start(node, "h800_8x.sh", *arguments)
    assert "rollout.groups_per_batch=4 grpo.groups_per_micro_batch=4" in four.stdout
    more = start(node, "h800_8x.sh", *arguments, "--", "rollout.groups_per_batch=12")
    assert more.returncode == 0, more.stderr
    assert "grpo.groups_per_micro_batch=4 rollout.groups_per_batch=12" in more.stdout
    assert "single_groups" not in more.stdout
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


def test_a_node_without_a_gpu_for_the_judge_is_refused(node: Path) -> None:
    """Without a judge's address the trainer would start the embedded one, which sees nothing in photographs."""
    done = start(node, "h800_8x.sh", "--dry-run", "--target", "h100x2")
    assert done.returncode == 2, done.stdout
    assert "no GPU of h100x2 is left for a judge" in done.stderr
    for given in (("--policy-gpus", "0", "--judge-gpus", "1"), ("--", "reward.family=random")):
        done = start(node, "h800_8x.sh", "--dry-run", "--target", "h100x2", *given)
        assert done.returncode == 0, done.stderr


def test_what_a_file_says_of_reward_and_judge_decides_whether_one_is_named(node: Path) -> None:
    """Any family in a file was taken for one that asks no judge, and an empty list took away the file's own judge."""

    def dry_run(text: str) -> subprocess.CompletedProcess[str]:
        (node / "mine.yaml").write_text(text)
        own = ("--config", str(node / "mine.yaml"))
        return start(node, "h800_8x.sh", "--dry-run", "--target", "h100x1", *own)

    balanced = dry_run("reward: {family: balanced}\n")
    assert balanced.returncode == 2, balanced.stdout
    assert "reward.family balanced would ask the embedded judge" in balanced.stderr
    assert "no GPU of h100x1 is left for a judge" in balanced.stderr
    named = dry_run("reward: {family: balanced}\njudge: {urls: ['http://far:8000']}\n")
    assert named.returncode == 0, named.stderr
    assert "judge.urls" not in named.stdout
    assert dry_run("reward: {family: imitation}\n").returncode == 0


@pytest.mark.parametrize(
    ("modality", "name", "policy", "judge"),
    [("image", "one_gpu.yaml", "0.50", "0.42"), ("video", "one_gpu_clips.yaml", "0.54", "0.38")],
)
def test_a_trial_on_one_gpu_has_policy_and_judge_on_it_in_turns(
    node: Path, modality: str, name: str, policy: str, judge: str
) -> None:
    shutil.copy(BACKBONE_FOLDER / "config.json", node / "model" / "config.json")  # what waits is counted
    smaller = ("--modality", modality, "--config", str(ROOT / "configs" / name))
    shares = ("--policy-memory", policy, "--judge-memory", judge)
    turns = ("--target", "h100x1", "--judge-turns", *shares, *smaller)
    done = start(node, "h800_8x.sh", "--dry-run", *turns, "--", "rollout.groups_per_batch=8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"CUDA_VISIBLE_DEVICES=0 XLA_PYTHON_CLIENT_MEM_FRACTION={policy}" in done.stdout
    assert "--gpus 0 " in done.stdout
    assert f"--gpu-memory-utilization {judge}" in done.stdout
    assert "--sleep-mode" in done.stdout
    assert done.stdout.count("groups_per_batch=") == 1


def test_groups_that_some_gpus_would_not_share_are_refused(node: Path) -> None:
    eight = ("rollout.groups_per_batch=8", "grpo.groups_per_micro_batch=8")
    done = start(node, "h800_8x.sh", "--dry-run", "--", *eight)
    assert done.returncode == 2
    assert (
        "grpo.groups_per_micro_batch=8 and rollout.groups_per_batch=8 would have every device" in done.stderr
    )
    assert "a multiple of 6" in done.stderr


def test_jax_that_computes_on_the_cpu_is_refused(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--dry-run", JAX_SEES="cpu 1")
    assert done.returncode == 2
    assert "computes on 6 GPUs" in done.stderr
    fewer = start(node, "h800_8x.sh", "--dry-run", JAX_SEES="gpu 5")
    assert "computes on 6 GPUs" in fewer.stderr


def test_a_slice_of_tpus_is_no_node_of_gpus(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--dry-run", "--target", "v5p-16")
    assert done.returncode == 2
    assert done.stderr == "error: --target v5p-16 is no node of GPUs; launch/tpu.sh is for TPUs\n"


def test_a_judge_may_have_an_ipv6_address(node: Path) -> None:
    """Unquoted its brackets are no YAML."""
    done = start(node, "h800_8x.sh", "--dry-run", "--elsewhere", "--judge-url", "http://[::1]:8000")
    assert done.returncode == 0, done.stdout + done.stderr
    words = shlex.split(next(line for line in done.stdout.splitlines() if "judge.urls=" in line))
    assert 'judge.urls=["http://[::1]:8000"]' in words


def test_the_memory_of_the_host_is_checked(node: Path) -> None:
    """22.7 GiB for each of 6 GPUs wait there, and two judges cache videos in 32 GiB each."""
    sizes = '{"model_type": "qwen3_vl", "text_config": {"num_hidden_layers": 36, "hidden_size": 4096}}'
    (node / "model" / "config.json").write_text(sizes)
    done = start(node, "h800_8x.sh", "--dry-run", "--modality", "video", HOST_MEMORY="1")
    assert "200 GiB of this host's memory" in done.stdout


def test_a_row_that_cannot_be_read_is_told_before_anything_starts(node: Path) -> None:
    with (node / "rows.jsonl").open("a") as rows:
        rows.write('{"image": "a.png"}\n')
    done = start(node, "h800_8x.sh")
    assert done.returncode == 2
    assert 'rows.jsonl:65: "id" must be' in done.stderr
    assert notes(node) == []


def test_what_the_run_itself_would_refuse_is_told_before_anything_starts(node: Path) -> None:
    rows = (node / "rows.jsonl").read_text().splitlines(keepends=True)
    (node / "rows.jsonl").write_text("".join(rows[:2]))
    few = start(node, "h800_8x.sh", "--dry-run")
    assert few.returncode == 2
    assert "1 samples do not fill one step of 32 groups" in few.stderr
    one = start(node, "h800_8x.sh", "--dry-run", "--", "rollout.group_size=1", "max_steps=1")
    assert "rollout.group_size is 1" in one.stderr


def test_a_run_that_cannot_be_gone_on_with_is_told_before_the_judge_starts(node: Path) -> None:
    run = node / "run"
    new = start(node, "h800_8x.sh", "--dry-run")
    assert f"run folder {run}: a new run" in new.stdout
    run.mkdir()
    (run / "config.yaml").write_text("seed: 5\n")
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    done = start(node, "h800_8x.sh")
    assert done.returncode == 2
    assert "seed: 5 then, 0 now" in done.stderr
    assert "start a new run in another folder" in done.stderr
    assert notes(node) == []
    assert (run / "config.yaml").read_text() == "seed: 5\n"


def test_checks_that_break_off_are_a_problem(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--dry-run", PREFLIGHT="breaks off")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "launch/preflight.py" in done.stderr


def test_a_run_is_a_policy_to_start_from(node: Path) -> None:
    (node / "model" / "config.json").rename(node / "origin.json")
    (node / "origin").mkdir()
    (node / "origin.json").rename(node / "origin" / "config.json")
    (node / "model" / "model.safetensors").rename(node / "origin" / "model.safetensors")
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


def test_without_an_answer_of_nvidia_smi_nothing_is_said_of_single_gpus(node: Path) -> None:
    (node / "bin" / "nvidia-smi").write_text("#!/bin/bash\nexit 9\n")
    done = start(node, "h800_8x.sh", "--dry-run")
    assert done.returncode == 2
    assert "- nvidia-smi answers" in done.stderr
    assert "- GPU" not in done.stderr


def test_gpus_that_are_hidden_from_the_job_are_not_taken(node: Path) -> None:
    """Where SLURM does not hide a node's other GPUs, GPU 0 may be another job's that has not begun."""
    on_one = ("--dry-run", "--target", "h100x1", "--policy-gpus", "0", *JUDGE_ELSEWHERE)
    done = start(node, "h800_8x.sh", *on_one, CUDA_VISIBLE_DEVICES="3,5")
    assert done.returncode == 2
    assert "CUDA_VISIBLE_DEVICES has GPUs 0: it is 3,5: choose from these by --policy-gpus" in done.stderr
    for visible in ("0", "5,0", "GPU-8932f937"):
        assert start(node, "h800_8x.sh", *on_one, CUDA_VISIBLE_DEVICES=visible).returncode == 0


def test_a_judge_elsewhere_leaves_all_gpus_to_the_policy(node: Path) -> None:
    arguments = ("--dry-run", "--judge-url", "http://far:8000")
    done = start(node, "h800_8x.sh", *arguments)
    assert done.returncode == 0, done.stderr
    assert "serve.py" not in done.stdout
    assert "0\\,1\\,2\\,3\\,4\\,5\\,6\\,7" in done.stdout
    down = start(node, "h800_8x.sh", *arguments, JUDGE_DOWN="1")
    assert "judge at http://far:8000 answers" in down.stderr


@pytest.mark.parametrize(
    ("url", "models"),
    [
        ("http://far:8000", "http://far:8000/v1/models"),
        ("http://far:8000/v1/", "http://far:8000/v1/models"),
        ("https://far/v1beta/openai", "https://far/v1beta/openai/models"),
    ],
)
def test_a_judge_with_a_path_is_asked_there(node: Path, url: str, models: str) -> None:
    """As the trainer does it."""
    (node / "bin" / "curl").write_text('#!/bin/bash\nprintf "%s\\n" "${@: -1}" >> "$NOTES"\n')
    assert start(node, "h800_8x.sh", "--dry-run", "--judge-url", url).returncode == 0
    assert models in (node / "notes").read_text().splitlines()


def test_a_judge_is_looked_for_where_the_trainer_will_ask_it(node: Path) -> None:
    """The trainer asks without a proxy; a key would be told to one."""
    (node / "bin" / "curl").write_text('#!/bin/bash\nprintf "%s " "$@" >> "$NOTES"\n')
    done = start(
        node, "h800_8x.sh", "--dry-run", "--judge-url", "http://far:8000", http_proxy="http://proxy:3128"
    )
    assert done.returncode == 0, done.stderr
    assert "--noproxy * " in notes(node)[0]


def test_a_judge_in_turns_shares_all_gpus_of_the_policy(node: Path) -> None:
    shutil.copy(BACKBONE_FOLDER / "config.json", node / "model" / "config.json")  # what waits is counted
    done = start(node, "h800_8x.sh", "--dry-run", "--judge-turns")
    assert done.returncode == 0, done.stdout + done.stderr
    judge, trainer = (
        line for line in done.stdout.splitlines() if line.startswith(("  judge   ", "  trainer "))
    )
    every = "0\\,1\\,2\\,3\\,4\\,5\\,6\\,7"
    assert f"--gpus {every} " in judge
    assert "--gpu-memory-utilization 0.30" in judge
    assert "--sleep-mode" in judge
    assert f"CUDA_VISIBLE_DEVICES={every} XLA_PYTHON_CLIENT_MEM_FRACTION=0.62" in trainer
    assert "http://127.0.0.1:8007" in trainer
    assert "judge.sleep_mode=true" in trainer
    assert "rollout.offload=\\[optimizer\\,reference\\]" in trainer
    assert "grpo.groups_per_micro_batch=8" in trainer
    assert trainer.count("rollout.groups_per_batch=24") == trainer.count("groups_per_batch=") == 1
    clips = start(node, "h800_8x.sh", "--dry-run", "--judge-turns", "--modality", "video")
    assert "rollout.groups_per_batch=8 " in clips.stdout + " "
    assert "--gpu-memory-utilization 0.34" in clips.stdout
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.58" in clips.stdout
    own = (
        "--policy-gpus",
        "0,1",
        "--policy-memory",
        "0.57",
        "--judge-memory",
        "0.35",
        "--",
        "rollout.groups_per_batch=2",
    )
    fewer = start(node, "h800_8x.sh", "--dry-run", "--judge-turns", *own)
    assert "--gpus 0\\,1 " in fewer.stdout
    assert "--gpu-memory-utilization 0.35" in fewer.stdout
    for elsewhere in (("--judge-url", "http://far:8000"), ("--judge-gpus", "7")):
        refused = start(node, "h800_8x.sh", "--dry-run", "--judge-turns", *elsewhere)
        assert refused.returncode == 2
        assert "--judge-turns has the judge on the policy's GPUs" in refused.stderr
    # The judge's default is 0.3; 8% of a GPU's memory are for what neither counts.
    for shares in (("0.7", "0.5"), ("0.9", None), ("0.62", "0.36")):
        given = [*(("--policy-memory", shares[0])), *(("--judge-memory", shares[1]) if shares[1] else ())]
        refused = start(node, "h800_8x.sh", "--dry-run", "--judge-turns", *given)
        assert refused.returncode == 2
        assert (
            f"--policy-memory {shares[0]} and --judge-memory {shares[1] or '0.30'} come to more"
            in refused.stderr
        )


@pytest.mark.parametrize("script", ["h800_8x.sh", pytest.param("slurm.sbatch", marks=pytest.mark.slow)])
def test_a_judge_may_be_asked_for_more_than_its_modality_needs(node: Path, script: str) -> None:
    more = ("--judge-max-model-len", "24576", "--judge-images-per-prompt", "12")
    done = start(node, script, "--dry-run", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    (judge,) = (line for line in done.stdout.splitlines() if line.startswith("  judge   "))
    assert "--max-model-len 24576 --images-per-prompt 12" in judge
    plain = start(node, script, "--dry-run").stdout
    assert "--max-model-len" not in plain
    assert "--images-per-prompt" not in plain


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


@pytest.mark.slow
def test_a_signal_lets_the_trainer_save_before_the_judge_goes(node: Path) -> None:
    process = subprocess.Popen(
        command(node, "h800_8x.sh"), env=environment(node), stdout=subprocess.PIPE, text=True
    )
    wait_for(node, "GPUs=0,1")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 143, "the trainer's own status"
    assert notes(node)[-2:] == ["trainer ended by SIGTERM", "judge ended by SIGTERM"]
    assert "run this command again to go on" in output


def test_ctrl_c_reaches_the_whole_group_and_still_ends_both_in_order(node: Path) -> None:
    with in_foreground():
        process = subprocess.Popen(
            command(node, "h800_8x.sh"),
            env=environment(node),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    wait_for(node, "GPUs=0,1")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=GUARD_S)
    assert process.returncode == 143, "the trainer's own status"
    assert notes(node)[-2:] == ["trainer ended by SIGTERM", "judge ended by SIGTERM"]
    assert "saving" in output
    assert "run this command again to go on" in output


def test_a_judge_ends_with_a_script_that_was_killed(node: Path) -> None:
    """Else it would keep its GPUs; the trainer then waits for it as long as it may, and saves."""
    process = subprocess.Popen(
        command(node, "h800_8x.sh"), env=environment(node, TRAINER_SECONDS="0.5"), stdout=subprocess.DEVNULL
    )
    wait_for(node, "judge ready")
    process.kill()
    process.wait(GUARD_S)
    wait_for(node, "judge ended with its parent")


def test_a_judge_that_cannot_start_ends_the_run_with_its_reason(node: Path) -> None:
    done = start(node, "h800_8x.sh", JUDGE="dies")
    assert done.returncode == 1
    assert "no memory on GPU 7" in done.stdout
    assert not any("trainer" in line for line in notes(node))


def test_a_judge_that_listens_elsewhere_is_asked_there(node: Path) -> None:
    arguments = ("--dry-run", "--judge-gpus", "7", "--judge-host")
    named = start(node, "h800_8x.sh", *arguments, "10.0.0.5", VCAP_JUDGE_KEY="secret")
    assert named.returncode == 0, named.stderr
    assert "http://10.0.0.5:8000" in named.stdout
    everywhere = start(node, "h800_8x.sh", *arguments, "0.0.0.0", VCAP_JUDGE_KEY="secret")
    assert "http://127.0.0.1:8000" in everywhere.stdout
    assert "secret" not in named.stdout + everywhere.stdout


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--judge-timeout", "30m"),
        ("--stop-timeout", "1800.5"),
        ("--judge-port", "08000"),
        ("--judge-tensor-parallel", "0"),
        ("--policy-memory", "92"),
        ("--judge-memory", "1.5"),
    ],
)
def test_numbers_that_the_shell_would_take_for_something_else_are_refused(
    node: Path, option: str, value: str
) -> None:
    """It compares with "30m" as if no limit were set, and says so to nobody."""
    done = start(node, "h800_8x.sh", "--dry-run", option, value)
    assert done.returncode == 2
    assert f"error: {option} is {value}; give " in done.stderr


def judge_line(output: str) -> list[str]:
    (line,) = (line for line in output.splitlines() if line.startswith("  judge   "))
    return shlex.split(line)[1:]


def test_a_judge_has_the_other_options_of_its_server(node: Path) -> None:
    options = ("--judge-option", "--stall-timeout-s=900", "--judge-option", "--extra=--max-num-seqs 64")
    gpus = ("--policy-gpus", "0,1,2,3", "--judge-gpus", "4,5,6,7", "--judge-tensor-parallel", "2")
    done = start(node, "h800_8x.sh", "--dry-run", *gpus, *options)
    assert done.returncode == 0, done.stderr
    words = judge_line(done.stdout)
    read = parse_arguments(words[words.index("gpu_judge/serve.py") + 1 :])
    assert (read.stall_timeout_s, read.extra) == (900, ("--max-num-seqs", "64"))
    settings = serve_settings(read)
    assert (settings.server_count, settings.port) == (2, 8000)
    assert "judge.urls=\\[http://127.0.0.1:8000\\,http://127.0.0.1:8001\\]" in done.stdout


@pytest.mark.slow
def test_the_caches_that_a_judge_is_given_are_those_that_are_counted(node: Path) -> None:
    """On a host with little memory they were refused at the size that the judge would have kept by itself."""

    def memory(*options: str) -> str:
        done = start(node, "h800_8x.sh", "--dry-run", "--elsewhere", *options)
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stdout.splitlines() if "GiB of h800x8's memory" in line)

    assert memory().startswith("  ok      32 GiB of ")
    fewer = ("--judge-option", "--media-cache-gb=4", "--judge-option", "--media-cache-gb=1.5")
    assert memory(*fewer).startswith("  ok      6 GiB of ")


@pytest.mark.parametrize("word", ["fp8", "--gpus=5", "--tensor-parallel-size=2", "--port-file=x", "--host"])
def test_what_the_script_says_of_the_judge_itself_is_not_said_twice(node: Path, word: str) -> None:
    done = start(node, "h800_8x.sh", "--dry-run", "--judge-option", word)
    assert done.returncode == 2
    assert f"error: --judge-option {word}: " in done.stderr
    far = start(node, "h800_8x.sh", "--dry-run", *JUDGE_ELSEWHERE, "--judge-option", "--quantization=fp8")
    assert far.returncode == 2
    assert "for a judge on this node, and there is none" in far.stderr


def test_a_judge_that_nobody_would_ask_is_refused(node: Path) -> None:
    both = ("--dry-run", "--judge-gpus", "6,7", "--policy-gpus", "0,1,2,3,4,5", *JUDGE_ELSEWHERE)
    done = start(node, "h800_8x.sh", *both)  # which has the port of the first server alone
    assert done.returncode == 2
    assert "the trainer asks the judge of this node" in done.stderr
    asked = start(node, "h800_8x.sh", *both, "--judge-url", "http://here:8001/v1")
    assert asked.returncode == 0, asked.stderr


def test_logs_lie_beside_a_run_folder_however_it_is_written(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--dry-run", "--run-dir", f"{node / 'run'}//")
    assert done.returncode == 0, done.stderr
    assert f"  logs    {node / 'run'}.logs/here/" in done.stdout.splitlines()


def test_a_run_folder_in_quotes_may_be_at_home(node: Path) -> None:
    """The trainer's would be there, and its logs and its judge's in a folder that is called ~."""
    done = start(node, "h800_8x.sh", "--dry-run", "--run-dir", "~/run", HOME=str(node))
    assert done.returncode == 0, done.stderr
    assert f"  logs    {node / 'run'}.logs/here/" in done.stdout.splitlines()


@pytest.mark.slow
def test_a_judge_that_never_judges_ends_the_run_with_the_end_of_its_log(node: Path) -> None:
    done = start(node, "h800_8x.sh", "--judge-timeout", "5", JUDGE="never")
    assert done.returncode == 1
    assert "did not judge within 5 s (--judge-timeout)" in done.stdout
    assert "still loading" in done.stdout
    assert notes(node)[-1] == "judge ended by SIGTERM"
