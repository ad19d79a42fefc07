"""Whole runs of the embedded world: what they leave, resume after SIGKILL, clips, bad data.

Runs that are killed are started by the command a user types, the others in this process, on one of the same simulated
devices, so that what one has compiled none compiles again. Their programs are compiled quickly; the slow test kills one
whose programs are compiled as a user's are, on the one device that a user has.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.docs.metrics_page import unexplained
from tests.rollout.rollout_server import RolloutServer
from tests.signals import in_foreground
from tests.sleeping import SharedDevices, Sleeper
from tests.sleeping_judge import SleepingJudge
from vcap_jax.captioning.captioner import Captioner
from vcap_jax.configuration import dump_config, load_config
from vcap_jax.data.errors import ManifestError
from vcap_jax.data.references import ReferencePool
from vcap_jax.grpo.update import StepUpdate
from vcap_jax.grpo.waiting import WaitingState
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.recipes import grpo as module
from vcap_jax.recipes.grpo import run
from vcap_jax.recipes.sft import run_sft
from vcap_jax.report.metrics import deterministic, read_metrics
from vcap_jax.report.run_folder import RunFolder, RunFolderError
from vcap_jax.rollout.sampler import GroupSampler
from vcap_jax.rollout.slots import Slots
from vcap_jax.run.config import RunConfig
from vcap_jax.run.folders import open_run
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.judge_process import embedded_judge

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "max_steps=4",
    "world.train_scenes=12",
    "world.heldout_scenes=4",
    "grpo.groups_per_step=4",
    "grpo.groups_per_micro_batch=2",
    "rollout.groups_per_batch=4",
    "rollout.group_size=4",
    "rollout.max_completion_length=48",
    "evaluation.every=3",
    "logging.save_every=1",
    "logging.samples_every=1",
]


COMMAND = [sys.executable, str(ROOT / "launch" / "train.py"), *SMALL, "mesh.fsdp=1"]
# Shared by all tests, see conftest.py; how a program was compiled is part of the name under which it is found.
COMMAND.append(f"compilation_cache={os.environ['JAX_COMPILATION_CACHE_DIR']}")


def environment(quick: bool) -> dict[str, str]:
    flags = os.environ["XLA_FLAGS"] if quick else ""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def train(run_dir: Path, *more: str) -> None:
    """A run of pictures as a user starts it, with the programs that a user has."""
    done = subprocess.run(
        [*COMMAND, "--run-dir", str(run_dir), *more],
        env=environment(quick=False),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def train_here(run_dir: Path, modality: str, *settings: str, resume: bool = False) -> str:
    """A run in this process, on one device; what it says."""
    files = [ROOT / "configs" / "embedded" / f"{modality}.yaml"]
    config = load_config(RunConfig, files, [*SMALL, "mesh.fsdp=1", *settings])
    said: list[str] = []
    run(*open_run(config, run_dir, resume=resume), say=said.append)
    return "\n".join(said)


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "alone"
    train_here(folder, "image")
    return folder


def weights(run_dir: Path, step: int) -> dict[str, np.ndarray]:
    with Checkpointer(run_dir / "checkpoints", read_only=True) as checkpoints:
        stored = checkpoints.stored(step)
        template: dict = {}
        for path, leaf in stored.items():
            node = template
            *above, last = path.split(".")
            for key in above:
                node = node.setdefault(key, {})
            node[last] = np.zeros(leaf.shape, leaf.dtype)
        restored, _ = checkpoints.restore(template, step)
    flat: dict[str, np.ndarray] = {}

    def walk(node, path=()):
        for key, value in node.items():
            if isinstance(value, dict):
                walk(value, (*path, key))
            else:
                flat[".".join((*path, key))] = np.asarray(value)

    walk(restored)
    return flat


@pytest.mark.parametrize("recipe", [run, run_sft])
def test_a_run_that_was_new_is_not_begun_over_itself(tmp_path, recipe):
    """Its checkpoint was removed and its rows were cut off, once a step of the second run had ended."""
    config = load_config(RunConfig, [ROOT / "configs" / "embedded" / "image.yaml"], ["mesh.fsdp=1"])
    folder = RunFolder.open(tmp_path / "run", config)
    folder.metrics.write_text('{"step": 1}\n')
    before = sorted(folder.root.iterdir())
    with pytest.raises(RunFolderError, match="which would be done anew: open it again with"):
        recipe(config, folder, say=pytest.fail)
    assert sorted(folder.root.iterdir()) == before
    assert folder.metrics.read_text() == '{"step": 1}\n'


@pytest.mark.long
def test_servers_draw_all_captions_of_a_run(tmp_path, monkeypatch):
    """References and held-out captions too; each of a run's parameters is given once, and a lost server is no end."""

    def never(*args, **kwargs):
        raise AssertionError("the sampler drew")

    monkeypatch.setattr(GroupSampler, "stream_batches", never)
    with RolloutServer(Processor.from_pretrained(BACKBONE_FOLDER)) as server:
        server.crash_at = 30  # in the first step
        settings = ["max_steps=2", "rollout.engine=vllm", f"rollout.vllm.urls=[{server.url}]"]
        said = train_here(tmp_path / "run", "image", *settings, f"rollout.vllm.weights_dir={tmp_path / 'w'}")
        drawn = Counter(chat["n"] for chat in server.chats)
        loads = len(server.weights)
    assert f"captions are drawn by vLLM at {server.url}" in said
    assert "is back and was given the weights again" in said
    # 12 references and 4 of held-out scenes, 4 captions of each before and after, 2 steps of 4 groups.
    assert drawn[1] == 12 + 4
    assert drawn[4] >= 4 + 2 * 4 + 4
    # The start's, of two steps, those of the end, and once more after the crash.
    assert loads == 1 + 2 + 1 + 1
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["rollout/mismatch_mean"] > 0 for row in rows)


@pytest.mark.long
def test_a_judge_in_turns_changes_nothing_that_is_computed(tmp_path, left_alone):
    """Stopped by SIGTERM, its judge left awake as by a kill, and resumed here, with everything on the host that can
    be."""
    folder, devices = tmp_path / "turns", SharedDevices()
    offload = "rollout.offload=[optimizer,reference,parameters]"
    with (
        embedded_judge(tmp_path / "judge.log") as behind,
        SleepingJudge(behind, Sleeper("judge", devices)) as judge,
    ):
        settings = [f"judge.urls=[{judge.url}]", "judge.sleep_mode=true", offload]
        steps = ended_by(signal.SIGTERM, 1, folder, *settings)
        with Checkpointer(folder / "checkpoints", read_only=True) as checkpoints:
            assert checkpoints.latest_step() == steps
        assert judge.sleeper.state == "asleep"
        judge.sleeper.restart()
        said = train_here(folder, "image", *settings, resume=True)
        assert judge.sleeper.state == "asleep"
    assert devices.wrong == []
    assert f"the judge at {judge.url} was awake: it sleeps until its turn" in said
    # A turn for each of two looks whether it is there, in each start, and for each step.
    assert devices.did.count("judge wakes up") == 2 * 2 + 4
    assert_the_same(folder, left_alone)


@pytest.mark.long
def test_policy_rollout_servers_and_judge_have_the_devices_in_turns(tmp_path, monkeypatch):
    """Nothing is asked of a server outside of its turn, and the state of the training lies on the host in theirs."""
    devices, held = SharedDevices(), list[WaitingState]()
    where: list[set[str | None]] = []
    build, update = WaitingState.__init__, StepUpdate.__call__

    def built(self, *given):
        held.append(self)
        devices.tell("training begins")
        build(self, *given)

    def updated(self, *given):
        devices.tell("the policy is updated")
        return update(self, *given)

    def woken():
        where.append({x.sharding.memory_kind for x in jax.tree.leaves([s.state for s in held]) if x.ndim})

    monkeypatch.setattr(WaitingState, "__init__", built)
    monkeypatch.setattr(StepUpdate, "__call__", updated)
    sleepers = Sleeper("rollout", devices), Sleeper("judge", devices)
    for sleeper in sleepers:
        sleeper.on_wake = woken
    with (
        RolloutServer(Processor.from_pretrained(BACKBONE_FOLDER), sleeper=sleepers[0]) as server,
        embedded_judge(tmp_path / "judge.log") as behind,
        SleepingJudge(behind, sleepers[1]) as judge,
    ):
        settings = [
            "rollout.engine=vllm",
            "rollout.vllm.sleep_mode=true",
            f"rollout.vllm.urls=[{server.url}]",
        ]
        settings += [
            f"judge.urls=[{judge.url}]",
            "judge.sleep_mode=true",
            "max_steps=3",
            "evaluation.every=null",
        ]
        settings += ["rollout.offload=[optimizer,reference,parameters]"]
        train_here(tmp_path / "run", "image", *settings, f"rollout.vllm.weights_dir={tmp_path / 'w'}")
    assert devices.wrong == []
    rollout, judge_ = (["rollout wakes up", "rollout sleeps"], ["judge wakes up", "judge sleeps"])
    begin = devices.did.index("training begins")
    # Each is looked at when it is first needed; references, those of held-out scenes and held-out captions are drawn.
    assert devices.did[:begin] == [*judge_, *rollout, *rollout, *judge_, *rollout, *rollout]
    steps = [*rollout, *judge_, "the policy is updated"] * 3
    assert devices.did[begin:] == ["training begins", *steps, *rollout]
    assert where[6:12] == [{"pinned_host"}] * 6
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(row["judge/failed"] == 0 and row["rollout/mismatch_mean"] > 0 for row in rows)
    assert not any((tmp_path / "w").iterdir())


def test_a_run_leaves_what_it_promises(left_alone):
    for name in (
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
        "samples.html",
        "plots.png",
        "comparison.png",
    ):
        assert (left_alone / name).stat().st_size > 0, name
    summary = json.loads((left_alone / "summary.json").read_text())
    for row in ("references", "start", "trained"):
        assert 0 <= summary[row]["coverage"] <= 1
        assert len(summary[row]["coverage_interval"]) == 2
    assert list(summary["evaluations"]["heldout"]) == ["start", "step-3", "trained", "references"]
    for row in ("references", "start", "trained"):
        metrics = summary["evaluations"]["heldout"][row]["metrics"]
        assert metrics["coverage"]["value"] == summary[row]["coverage"]
        assert [metrics["hallucination"][end] for end in ("low", "high")] == summary[row][
            "hallucination_interval"
        ]
    assert summary["seconds"] > 0
    assert summary["attention"] in {"native", "chunked"}
    rows = read_metrics(left_alone / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["judge/failed"] == 0 for row in rows)
    assert all(0 < row["rollout/mismatch_mean"] < 1e-5 for row in rows)
    assert "rollout/truncated" not in rows[0]
    # The first step compiles everything; afterwards nothing is compiled.
    assert rows[0]["compiles"] > 0
    assert [row["compiles"] for row in rows[2:]] == [0, 0]
    assert [row["step"] for row in rows if "eval/heldout/coverage" in row] == [3]
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert rows[0]["lr"] == 0
    assert unexplained(set().union(*rows)) == []
    assert all(0 <= row["facts/coverage"] <= 1 and 0 <= row["facts/hallucination"] <= 1 for row in rows)


@pytest.mark.long
@pytest.mark.parametrize(
    "by",
    [
        "nobody",
        pytest.param("the pool", marks=pytest.mark.slow),
        "its writer",
        pytest.param("its writer, of other scenes", marks=pytest.mark.slow),
    ],
)
def test_references_of_the_held_out_scenes_are_of_the_pool_that_is_trained_on(
    tmp_path, left_alone, monkeypatch, by
):
    """Of its last phases, whose files are gone: where neither the pool nor the run that wrote it has any for these
    scenes there are no such references, least of all the base's. And no decoding is compiled for steps that are not to
    be done."""
    folder, pool = tmp_path / "run", tmp_path / "pool.jsonl"
    shutil.copytree(left_alone, folder)
    there = folder / "evaluations" / "heldout"
    parts = [folder / "references" / "train.jsonl", there / "references.jsonl"]
    covered = by in ("the pool", "its writer")
    if by == "its writer":
        pool = left_alone / "references" / "train.jsonl"
    elif by == "its writer, of other scenes":
        writer = shutil.copytree(left_alone, tmp_path / "writer")
        pool = writer / "references" / "train.jsonl"
        other = load_config(RunConfig, [writer / "config.yaml"], ["world.seed=7"])
        (writer / "config.yaml").write_text(dump_config(other))
    elif by == "the pool":
        ReferencePool([entry for part in parts for entry in ReferencePool.read(part).entries()]).write(pool)
        # It is not the pool that the run began with, which is another test's matter.
        (folder / "references.json").unlink()
    else:
        shutil.copy(parts[0], pool)
    for path in (folder / "summary.json", folder / "comparison.png", *there.glob("references.*")):
        path.unlink()
    given = f"data.references={pool}"
    config = load_config(RunConfig, [folder / "config.yaml"], [given])
    (folder / "config.yaml").write_text(dump_config(config))

    def never(ctx):
        raise AssertionError("all steps are done")

    monkeypatch.setattr(module, "compile_decoding", never)
    said = train_here(folder, "image", given, resume=True)
    summary, before = (json.loads((root / "summary.json").read_text()) for root in (folder, left_alone))
    rows = ["references", "start", "trained"] if covered else ["start", "trained"]
    assert [row for row in ("references", "start", "trained") if row in summary] == rows
    assert {row: summary[row] for row in rows} == {row: before[row] for row in rows}
    assert (f"{pool} has no references of the held-out scenes" in said) is not covered
    assert ("references" in summary["evaluations"]["heldout"]) is covered
    assert not (there / "references.jsonl").exists()
    assert (folder / "comparison.png").stat().st_size > 0


def ended_by(wanted: signal.Signals, step: int, folder: Path, *more: str, quick: bool = True) -> int:
    """Starts a run and sends it a signal once it has written that many steps; returns how many it has written."""
    with in_foreground():
        process = subprocess.Popen(
            [*COMMAND, "--run-dir", str(folder), *more],
            env=environment(quick),
            stdout=subprocess.DEVNULL,
            stderr=(folder.parent / "stderr").open("w"),
            start_new_session=True,
        )
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 600

    def written() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    while time.monotonic() < deadline and process.poll() is None and written() < step:
        time.sleep(0.02)
    # As a terminal does: to the run, and to the judge that it has started.
    os.killpg(process.pid, wanted)
    assert process.wait(900) != 0
    assert not (folder / "summary.json").exists(), "the run ended before it could be ended"
    return written()


def assert_the_same(folder: Path, left_alone: Path) -> None:
    """Bit for bit: metrics, weights, samples and the summary's rows."""
    here, there = (read_metrics(run / "metrics.jsonl") for run in (folder, left_alone))
    assert [deterministic(row) for row in here] == [deterministic(row) for row in there]
    ours, theirs = weights(folder, 4), weights(left_alone, 4)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert (folder / "samples.jsonl").read_text() == (left_alone / "samples.jsonl").read_text()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (folder, left_alone)]
    for row in ("references", "start", "trained", "evaluations"):
        assert summaries[0][row] == summaries[1][row]
    for path in (left_alone / "evaluations" / "heldout").iterdir():
        if path.name != "references.jsonl":  # whose header says when it was written
            assert (folder / "evaluations" / "heldout" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_killed_and_resumed_is_bit_for_bit_the_same(tmp_path, left_alone):
    folder = tmp_path / "killed"
    ended_by(signal.SIGKILL, 2, folder)
    train_here(folder, "image", resume=True)
    assert_the_same(folder, left_alone)


@pytest.mark.long
def test_captions_drawn_ahead_are_found_again_after_a_kill(tmp_path):
    """The checkpoint holds what the weights before it have drawn."""
    alone, folder = tmp_path / "alone", tmp_path / "killed"
    train_here(alone, "image", "rollout.ahead=1")
    rows = read_metrics(alone / "metrics.jsonl")
    assert [row["rollout/age"] for row in rows] == [0, 1, 1, 1]
    # The learning rate begins at 0, so until the third step both policies are one.
    assert [abs(row["ratio"] - 1) > 1e-3 for row in rows] == [False, False, True, True]
    ended_by(signal.SIGKILL, 2, folder, "rollout.ahead=1")
    # What waits where is no part of what a run is.
    train_here(folder, "image", "rollout.ahead=1", "rollout.offload=[optimizer,parameters]", resume=True)
    assert_the_same(folder, alone)


@pytest.mark.long
def test_what_waits_in_the_hosts_memory_changes_nothing_that_is_computed(tmp_path, left_alone, monkeypatch):
    """Stopped by SIGTERM, with everything on the host that can be, and resumed here, where it is seen to lie there."""
    folder, offload = tmp_path / "waiting", "rollout.offload=[optimizer,reference,parameters]"
    steps = ended_by(signal.SIGTERM, 1, folder, offload)
    with Checkpointer(folder / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.latest_step() == steps
    held: list[WaitingState] = []
    updates: list[StepUpdate] = []
    found: set[tuple[frozenset[str | None], ...]] = set()
    build, decode, fixed = WaitingState.__init__, Slots.decode, StepUpdate.fixed

    def kinds(tree: object) -> frozenset[str | None]:
        return frozenset(x.sharding.memory_kind for x in jax.tree.leaves(tree))

    def built(self, *given):
        held.append(self)
        build(self, *given)

    def decoded(self):
        # Before the first step, held-out captions are drawn without a state.
        if held:
            state = held[-1].state
            found.add((kinds(state.params), kinds(state.opt_state)))
        decode(self)

    def looked_at(self, *given, **more):
        updates.append(self)
        return fixed(self, *given, **more)

    monkeypatch.setattr(WaitingState, "__init__", built)
    monkeypatch.setattr(Slots, "decode", decoded)
    monkeypatch.setattr(StepUpdate, "fixed", looked_at)
    train_here(folder, "image", offload, resume=True)
    assert_the_same(folder, left_alone)
    host, device = (frozenset({kind}) for kind in ("pinned_host", "device"))
    # On one device captions are drawn with the embedding and the last norm as they are.
    assert found == {
        (host | device, host),  # in a step
        (device, host),  # held-out captions, between two steps and after the last
    }
    assert {kinds(update.reference) for update in updates} == {host}
    assert read_metrics(folder / "metrics.jsonl")[-1]["compiles"] == 0


@pytest.mark.long
def test_stopped_and_killed_and_resumed_is_bit_for_bit_the_same(tmp_path):
    """Ended by Ctrl-C, then killed, and at last left alone; with the programs a user has."""
    left_alone, folder = tmp_path / "alone", tmp_path / "killed"
    train(left_alone)
    steps = ended_by(signal.SIGINT, 1, folder, quick=False)
    with Checkpointer(folder / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.latest_step() == steps
    said = (tmp_path / "stderr").read_text()
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"stopped after step {steps} of 4, which is saved; go on with: ")
    assert said.endswith(" --resume\n")
    ended_by(signal.SIGKILL, max(3, steps + 1), folder, "--resume", quick=False)
    train(folder, "--resume")
    assert_the_same(folder, left_alone)


def test_a_used_folder_is_refused_without_resume(left_alone, monkeypatch, capsys):
    """By the whole command, in this process."""
    words = [*SMALL, "mesh.fsdp=1", "compilation_cache=null", "--run-dir", str(left_alone)]
    monkeypatch.setattr(sys, "argv", [COMMAND[1], *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(COMMAND[1], run_name="__main__")
    assert end.value.code == 1
    assert f"{left_alone} is not empty" in (said := capsys.readouterr().err)
    assert "--resume" in said


def test_a_manifest_that_is_gone_where_a_run_is_resumed_costs_no_wait_for_its_judge(tmp_path, monkeypatch):
    gone = load_config(RunConfig, [], [f"data.manifest={tmp_path / 'gone.jsonl'}", "mesh.fsdp=1"])
    folder = RunFolder.open(tmp_path / "run", gone)
    folder.metrics.write_text('{"step": 1}\n')
    monkeypatch.setattr(module, "answering_judge", None)
    with pytest.raises(ManifestError, match=r"gone\.jsonl does not exist"):
        run(gone, RunFolder(folder.root, resumed=True), say=lambda _: None)


@pytest.mark.slow
def test_video_runs_with_the_local_term(tmp_path):
    folder = tmp_path / "video"
    train_here(folder, "video", "max_steps=2", "rollout.max_completion_length=112")
    rows = read_metrics(folder / "metrics.jsonl")
    assert len(rows) == 2
    assert all("reward/local/correctness" in row for row in rows)
    said: list[str] = []
    with Captioner.load(folder, settings=["rollout.max_completion_length=8"], say=said.append) as captioner:
        assert isinstance(captioner.caption(np.zeros((64, 64, 3), np.uint8)), str)
    assert said[-1].endswith("trained on videos: of images it learned nothing")


@pytest.mark.long
def test_user_data_with_broken_files(tmp_path):
    """Photographs of any size, one truncated and one missing: reported by name and skipped, nothing else lost."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, (height, width) in {
        "tall": (400, 90),
        "wide": (60, 500),
        "small": (20, 20),
        "cut": (200, 200),
    }.items():
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(tmp_path / f"{name}.png")
    Image.fromarray(rng.integers(0, 255, (150, 130), np.uint8), mode="L").save(tmp_path / "grey.png")
    whole = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    rows = [{"id": n, "image": f"{n}.png"} for n in ("tall", "wide", "small", "grey", "cut", "absent")]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "run"
    said = train_here(
        folder,
        "image",
        f"data.manifest={tmp_path / 'manifest.jsonl'}",
        "max_steps=2",
        "logging.samples_per_step=4",
    )
    assert "skipped sample cut" in said
    assert "skipped sample absent" in said
    assert "cut.png" in said
    assert "absent.png" in said
    assert "These rewards mean nothing here: the embedded judge reads only pictures" in said
    assert "4 of the 4 samples looked at (there are 6) are not its own" in said
    assert len(read_metrics(folder / "metrics.jsonl")) == 2
    shown = {json.loads(line)["id"] for line in (folder / "samples.jsonl").read_text().splitlines()}
    assert shown == {"tall", "wide", "small", "grey"}
