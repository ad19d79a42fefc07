"""Several processes, for real: a run of two with two simulated devices each follows the run of one, survives a kill
and goes on elsewhere; and processes that meet, fail and vanish.

The two are started as a user starts them, with programs compiled without optimisation: they run a few times only. Who
is alone is this process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import quick_compile
from tests.listening import ports_for_servers
from tests.patience import GUARD_S
from vcap_jax.configuration import load_config
from vcap_jax.parallel.processes import DistributedConfig, PeerFailed, Processes, joined
from vcap_jax.recipes.grpo import run
from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.run.config import RunConfig
from vcap_jax.run.folders import open_run
from vcap_jax.world.captions import weak_caption
from vcap_jax.world.dataset import MANIFEST, read_scenes, write_dataset

ROOT = Path(__file__).resolve().parents[2]
STEPS = 5
WORDS = "tests.evals.own_evaluators:Words"
PEER_TIMEOUT_S = 30
"""The others end so long after one has died at most, and on a busy machine no process is silent for so long."""


def settings(data: Path) -> list[str]:
    return [
        f"data.manifest={data / MANIFEST}",
        f"data.references={data / 'references.jsonl'}",
        f"max_steps={STEPS}",
        "grpo.groups_per_step=8",
        "grpo.groups_per_micro_batch=4",
        "rollout.groups_per_batch=8",
        "rollout.group_size=4",
        "rollout.max_completion_length=32",
        "logging.save_every=1",
        "logging.plot_every=100",
        "evaluation.every=2",
        # On the same pictures, one of which is broken.
        f"evaluation.evaluators=[{{use: '{WORDS}', captions: 2, options: {{manifest: '{data / MANIFEST}'}}}}]",
    ]


def train_here(data: Path, folder: Path, *, resume: bool = False) -> None:
    """The same run by this process alone, on one device."""
    files = [ROOT / "configs" / "embedded" / "image.yaml"]
    config = load_config(RunConfig, files, [*settings(data), "mesh.fsdp=1"])
    run(*open_run(config, folder, resume=resume), say=lambda _: None)


class Run:
    """Commands that share a run folder, each with its own output file."""

    def __init__(self, data: Path, folder: Path, *more: str, processes: int, devices: int) -> None:
        self.folder = folder
        self.metrics = folder / "metrics.jsonl"
        flags = " ".join([*quick_compile.flags(), f"--xla_force_host_platform_device_count={devices}"])
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROOT / "launch" / "train.py"), "--run-dir", str(folder)]
        command += [f"compilation_cache={os.environ['JAX_COMPILATION_CACHE_DIR']}", *settings(data), *more]
        coordinator = f"127.0.0.1:{ports_for_servers(1)[0]}"
        self.outputs = [folder.with_suffix(f".{index}") for index in range(processes)]
        self.started = []
        for index, output in enumerate(self.outputs):
            place = [
                f"distributed.coordinator={coordinator}",
                f"distributed.processes={processes}",
                f"distributed.process_id={index}",
                f"distributed.peer_timeout_s={PEER_TIMEOUT_S}",
            ]
            with output.open("wb") as file:
                self.started.append(
                    subprocess.Popen(
                        command + place,
                        env=environment,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )

    def output(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self.outputs)

    def wait_for_step(self, step: int, seconds: float = 3 * GUARD_S) -> None:
        deadline = time.monotonic() + seconds
        while not (self.metrics.exists() and self.metrics.read_bytes().count(b"\n") >= step):
            assert time.monotonic() < deadline, self.output()
            assert all(process.poll() is None for process in self.started), self.output()
            time.sleep(0.02)

    def wait(self, seconds: float = 3 * GUARD_S) -> list[int]:
        deadline = time.monotonic() + seconds
        try:
            return [process.wait(max(deadline - time.monotonic(), 0.1)) for process in self.started]
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s:\n{self.output()}")
        finally:
            for process in self.started:
                process.kill()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A user's pictures with one file broken, and references: so a run is training and nothing else.

    Two steps see them all.
    """
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder, "image", "train", 12, seed=0)
    rng = np.random.default_rng(0)
    with (folder / "references.jsonl").open("w", encoding="utf-8") as file:
        for identity, scene in read_scenes(folder).items():
            file.write(json.dumps({"id": identity, "references": [weak_caption(scene, rng)]}) + "\n")
    broken = sorted(folder.rglob("*.png"))[4]
    broken.write_bytes(broken.read_bytes()[:60])
    return folder


def same_steps(here: Path, there: Path, steps: int, *, evaluated: bool = True) -> None:
    """Equal rows up to float tolerance: the same samples, captions and scores, and losses as near as sums can be.

    evaluated: whether the last of these steps has had its evaluation, if one is due.
    """
    ours, theirs = (read_metrics(folder / "metrics.jsonl")[:steps] for folder in (here, there))
    assert len(ours) == len(theirs) == steps
    for one, other in zip(ours, theirs, strict=True):
        one, other = deterministic(one), deterministic(other)
        if not evaluated and one["step"] == steps:
            one, other = ({k: v for k, v in row.items() if k[:5] != "eval/"} for row in (one, other))
        assert one.keys() == other.keys()
        for name, value in one.items():
            if name in ("rollout/mismatch_mean", "rollout/mismatch_max"):
                # Sampler and trainer differ by rounding alone, which other sizes of batches do otherwise.
                assert max(value, other[name]) < 1e-4, (name, one["step"])
                continue
            # The policy loss is a sum of advantages around zero times ratios of one: its size is that of rounding.
            assert value == pytest.approx(other[name], rel=2e-3, abs=2e-6, nan_ok=True), (name, one["step"])


@pytest.mark.long
def test_two_processes_follow_one_and_a_killed_run_goes_on_elsewhere(data, tmp_path):
    """The two have in the host's memory what can wait there, the one has not: nothing else is different."""
    folder = tmp_path / "shared"
    waiting = "rollout.offload=[optimizer,reference,parameters]"
    shared = Run(data, folder, waiting, processes=2, devices=2)
    # One of two processes is killed: the other ends soon and says why.
    shared.wait_for_step(2)
    shared.started[1].send_signal(signal.SIGKILL)
    codes = shared.wait()
    assert codes[0] not in (0, None)
    assert "--resume" in shared.outputs[0].read_text(errors="replace"), shared.output()
    before = len(read_metrics(folder / "metrics.jsonl"))
    assert 2 <= before < STEPS
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any(row["data/skipped"] == 1 for row in rows)
    assert [row["compiles"] for row in rows[1:]] == [0] * (before - 1)
    train_here(data, tmp_path / "alone")
    same_steps(folder, tmp_path / "alone", before, evaluated=False)

    # One process with a single device ends the run.
    train_here(data, folder, resume=True)
    same_steps(folder, tmp_path / "alone", STEPS)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row.get("eval/words/failed") for row in rows] == [None, 1 / 12, None, 1 / 12, None]
    for name in ("start.jsonl", "start.items.jsonl", "start.json"):
        ours, theirs = (root / "evaluations" / "words" / name for root in (folder, tmp_path / "alone"))
        assert ours.read_text() == theirs.read_text()
    shutil.rmtree(folder)


# Forks share the imports; neither JAX nor gRPC has begun anything before.
MEETING = """
import os, signal, sys
sys.path.insert(0, {root!r})
os.environ["JAX_PLATFORMS"] = "cpu"
from vcap_jax.parallel.processes import DistributedConfig, PeerFailed, joined

def meet(index, case, coordinator):
    config = DistributedConfig(coordinator=coordinator, processes=2, process_id=index, peer_timeout_s=30)
    with joined(config) as processes:
        assert processes.all_gather_objects("first", [index, float("nan")])[1 - index][0] == 1 - index
        assert processes.on_process_0("led", lambda: "by 0") == "by 0"
        for number in range(20):
            processes.barrier(f"round {{number}}")
        if case == "agreed":
            try:
                processes.together("work", lambda: 1 // index)
            except ZeroDivisionError:
                print("mine")
            except PeerFailed as error:
                print(error)
        elif case == "raised" and index == 1:
            raise KeyError("a bug")
        elif case == "vanished" and index == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        elif case == "last":
            # Still busy when the other is at its end: until that has come to wait.
            if index == 0:
                processes._store.blocking_key_value_get_bytes("vcap/meetings/%d/1" % processes._meetings, 60_000)
            print("done")
        if case in ("raised", "vanished"):
            try:
                processes.barrier("never")
            except PeerFailed as error:
                print(error, flush=True)
                sys.exit(1)

started = {{}}
for case, coordinator, *outputs in zip(*[iter(sys.argv[1:])] * 4):
    for index, output in enumerate(outputs):
        pid = os.fork()
        if not pid:
            file = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
            break
        started[pid] = output
    else:
        continue
    meet(index, case, coordinator)
    sys.exit(0)
for _ in range(len(started)):
    pid, status = os.wait()
    print(os.waitstatus_to_exitcode(status), started[pid])
"""


@pytest.fixture(scope="module")
def meetings(tmp_path_factory) -> dict[str, list[tuple[int, str]]]:
    """Exit status and output of the two processes of each case, where a proxy is named that answers nobody: JAX took it
    for the way to process 0."""
    folder = tmp_path_factory.mktemp("meetings")
    outputs = {
        case: [folder / f"{case}.{index}" for index in range(2)]
        for case in ("agreed", "raised", "vanished", "last")
    }
    arguments = [
        str(word)
        for (case, (first, second)), port in zip(outputs.items(), ports_for_servers(4), strict=True)
        for word in (case, f"127.0.0.1:{port}", first, second)
    ]
    done = subprocess.run(
        [sys.executable, "-c", MEETING.format(root=str(ROOT)), *arguments],
        env={**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=True,
    )
    status = {path: int(code) for code, path in (line.split(maxsplit=1) for line in done.stdout.splitlines())}
    return {
        case: [(status[str(path)], path.read_text()) for path in paths] for case, paths in outputs.items()
    }


def test_what_fails_in_one_process_reaches_the_other_by_name(meetings) -> None:
    (first, mine), (second, theirs) = meetings["agreed"]
    assert (first, second) == (0, 0), mine + theirs
    assert mine.strip().endswith("mine")
    assert "process 0, work: ZeroDivisionError" in theirs


def test_who_is_done_waits_for_the_last_before_it_leaves(meetings) -> None:
    """JAX would abort all of them after ``peer_timeout_s``: the first may still send to a tracker, or draw."""
    assert [status for status, _ in meetings["last"]] == [0, 0], meetings["last"]
    assert [output.strip() for _, output in meetings["last"]] == ["done", "done"]


def test_a_process_that_ends_between_meetings_tells_the_others(meetings) -> None:
    (first, output), (second, trace) = meetings["raised"]
    assert first != 0
    assert second != 0
    assert "process 1 ended while this one waited at 'never': KeyError: 'a bug'" in output
    assert "KeyError: 'a bug'" in trace


def test_the_loss_of_the_coordinator_ends_the_others_with_a_message(meetings) -> None:
    (first, gone), (second, output) = meetings["vanished"]
    assert first == -signal.SIGKILL
    assert "process 0 of 2 ended abruptly" in gone
    assert second not in (0, None)
    assert (
        "start all processes again with --resume" in output
        or "the coordinator (process 0) does not answer" in output
    )


class Store(dict[str, bytes]):
    """JAX's coordination service, in which whatever is asked for is there."""

    key_value_set = key_value_set_bytes = dict.__setitem__
    key_value_delete = dict.__delitem__

    def blocking_key_value_get_bytes(self, key, timeout_in_ms) -> bytes:
        return self[key]


def test_a_meeting_clears_the_last_one_away_and_is_of_those_who_are_at_the_same() -> None:
    """A value that nobody deletes stays in the memory of process 0 to the end of a run."""
    store: Any = Store()
    process = Processes(0, 2, store)
    for number in range(4):
        store[f"vcap/meetings/{number}/1"] = json.dumps(["round", number]).encode()
        assert process.all_gather_objects("round", -number) == [-number, number]
    assert [key for key in store if key.endswith("/0")] == ["vcap/meetings/3/0"]
    store["vcap/meetings/4/1"] = json.dumps(["end of step", False]).encode()
    with pytest.raises(PeerFailed, match="process 1 is at 'end of step', this one at 'round'"):
        process.barrier("round")


def test_who_has_failed_meets_nobody_at_its_end() -> None:
    store: Any = Store()
    process = Processes(1, 2, store)
    process.fail(KeyError("a bug"))
    process.end()
    assert store == {"vcap/failures/1": "KeyError: 'a bug'"}


@pytest.mark.parametrize(
    "coordinator", ["host", "host:", "host:0", "host:99999", "host:1a", "8476", ":8476", "http://host:8476"]
)
def test_what_names_no_host_or_no_port_is_refused(coordinator: str) -> None:
    """Without a host, or with a scheme, JAX ended with an IndexError or in an abort."""
    with pytest.raises(ValueError, match="give HOST:PORT of process 0"):
        DistributedConfig(coordinator=coordinator, processes=2, process_id=0)


START = """
from vcap_jax.parallel.processes import DistributedConfig, joined
from vcap_jax.run.command_line import guarded

def start():
    with joined(DistributedConfig({})):
        return 0

raise SystemExit(guarded(start, goes_on=False))
"""


def test_where_jax_finds_no_other_processes_that_is_told() -> None:
    """As where a configuration of a cluster is tried elsewhere; it was a traceback of JAX."""
    of_a_cluster = ("JAX_", "SLURM_", "OMPI_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_a_cluster)}
    told = subprocess.run(
        [sys.executable, "-c", START.format("automatic=True")],
        env={**environment, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert told.returncode == 1
    assert "distributed.automatic is true, and JAX finds no other processes" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.long
def test_a_process_that_the_others_do_not_join_says_so_when_jax_aborts_it() -> None:
    """It was a stack of C++ alone."""
    coordinator = f"127.0.0.1:{ports_for_servers(1)[0]}"
    alone = f"coordinator={coordinator!r}, processes=2, process_id=1, start_timeout_s=5"
    told = subprocess.run(
        [sys.executable, "-c", START.format(alone)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert told.returncode != 0
    last = told.stderr.splitlines()[-1]
    assert last.startswith(
        "error: the processes of the run did not find each other within 5 s: start 2 of them"
    )
    assert coordinator in last


def test_a_port_that_is_taken_is_told() -> None:
    """JAX ended the process by SIGSEGV, or was taken to have waited for the others in vain."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        coordinator = f"127.0.0.1:{taken.getsockname()[1]}"
        config = DistributedConfig(coordinator=coordinator, processes=2, process_id=0)
        with (
            pytest.raises(PeerFailed, match=r"cannot listen at port \d+, which distributed.coordinator"),
            joined(config),
        ):
            pass
