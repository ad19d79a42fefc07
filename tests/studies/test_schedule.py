"""The order of work, failures, and what is not done twice; processes only note that they ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.signals import in_foreground
from tests.studies.made_up import SMALL
from vcap_jax.studies import schedule
from vcap_jax.studies.results import identity, machine, versions
from vcap_jax.studies.schedule import ScheduleError, only_one, spent, work
from vcap_jax.studies.tasks import plan
from vcap_jax.system.json_values import JsonError
from vcap_jax.system.shutdown import Stopped, stop_on_signal

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import json, os, pathlib, signal, sys, time
out, key = pathlib.Path(sys.argv[1]), sys.argv[2]
told = json.loads((out / "tasks" / (key.replace("/", "-") + ".json")).read_text())["task"]
with (out / "ran").open("a") as log:
    log.write(key + "\\n")
if (out / "interrupts").exists():
    signal.signal(signal.SIGTERM, lambda *_: ((out / "ended").write_text("in order"), sys.exit(143)))
    assert os.getsid(0) == os.getpid(), "Ctrl-C would reach it as well"
    os.kill(int(sys.argv[3]), signal.SIGINT)
    time.sleep(600)
if (out / "fails").exists() and key == (out / "fails").read_text():
    print("no room left"); sys.exit(5)
run = out / "runs" / told["folder"] / told["result"]
run.mkdir(parents=True, exist_ok=True)
(run / "summary.json").write_text("{}")
"""


@pytest.fixture
def stood_in(monkeypatch, tmp_path):
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    real = schedule.subprocess.Popen

    def start(command, **options):
        assert command[1:3] == ["-m", "vcap_jax.studies.perform"]
        return real([sys.executable, str(script), *command[3:]], **options)

    monkeypatch.setattr(schedule.subprocess, "Popen", start)
    monkeypatch.setattr(schedule, "code_version", lambda: "this code")
    return tmp_path / "out"


@pytest.fixture
def tasks():
    return plan(quick=False, seeds=(0,), only=["distillation"], overrides=SMALL)


def ran(out: Path) -> list[str]:
    return (out / "ran").read_text().split()


def test_all_are_done_once_and_in_order(stood_in, tasks):
    out, said = stood_in, []
    with only_one(out):
        outcome = work(tasks, out, workers=2, say=said.append)
    assert (outcome.failed, outcome.blocked) == ({}, ())
    done = ran(out)
    assert sorted(done) == sorted(tasks.tasks)
    for key, task in tasks.tasks.items():
        assert all(done.index(earlier) < done.index(key) for earlier in task.after)
    assert {taken.key for taken in spent(out).values()} == set(tasks.tasks)
    assert set(spent(out)) == {identity(task) for task in tasks.tasks.values()}
    assert {taken.machine for taken in spent(out).values()} == {machine()}
    assert {taken.versions for taken in spent(out).values()} == {versions()}
    assert {taken.code for taken in spent(out).values()} == {"this code"}
    assert any(line.startswith("5/5") and "0 left" in line for line in said)
    with only_one(out):
        work(tasks, out, workers=2, say=said.append)
    assert ran(out) == done


def test_a_failure_is_named_and_only_what_needs_it_is_left(stood_in, tasks):
    out, said = stood_in, []
    out.mkdir()
    (out / "fails").write_text("image/e2/0")
    outcome = work(tasks, out, workers=1, say=said.append)
    assert list(outcome.failed) == ["image/e2/0"]
    assert outcome.blocked == ("image/from_e2/0",)
    assert "no room left" in outcome.failed["image/e2/0"].read_text()
    assert any("FAILED with 5" in line and "no room left" in line for line in said)
    (out / "fails").unlink()
    e2 = identity(tasks.tasks["image/e2/0"])
    assert e2 in spent(out), "what a start took counts, whatever came of it"
    before = spent(out)[e2].seconds
    outcome = work(tasks, out, workers=1, say=said.append)
    assert (outcome.failed, outcome.blocked) == ({}, ())
    assert spent(out)[e2].seconds > before
    assert ran(out).count("image/e1/0") == 1


def test_ctrl_c_lets_the_runs_at_work_end_in_order(stood_in, tasks):
    stood_in.mkdir()
    (stood_in / "interrupts").touch()
    with in_foreground(), only_one(stood_in), stop_on_signal(), pytest.raises(Stopped):
        work(tasks, stood_in, workers=1, say=lambda _: None)
    assert (stood_in / "ended").read_text() == "in order"


@pytest.mark.slow
def test_a_run_whose_scheduler_was_killed_ends(tmp_path):
    """Also one that was still importing when it happened: the scheduler here is gone before the run begins."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    script = (
        "import time\n"
        "from vcap_jax.studies import perform\n"
        "perform.perform = lambda *_: time.sleep(600)\n"
        f"perform.main([{str(tmp_path)!r}, 'image/e1/0', '{gone.pid}'])\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=300, check=False)
    assert run.returncode == 3


def test_one_program_at_a_time(tmp_path):
    with only_one(tmp_path), pytest.raises(ScheduleError, match="give another --out"), only_one(tmp_path):
        raise AssertionError("both hold the folder")
    with only_one(tmp_path):
        pass


def test_nobody_at_work_is_refused(tmp_path, tasks):
    with pytest.raises(ScheduleError, match="0 workers"):
        work(tasks, tmp_path, workers=0)


def noted(key: str, seconds: float, *, complete: bool = True) -> str:
    """A line of seconds.jsonl."""
    by = {"code": "this code", "task": f"{key} as configured", "machine": "a CPU", "versions": "JAX 1"}
    return json.dumps({"key": key, "seconds": seconds, "workers": 1, "complete": complete, **by}) + "\n"


def test_time_left_goes_by_what_the_same_arm_took(tmp_path, tasks):
    lines = [
        noted("image/e2/7", 30, complete=False),
        noted("image/e2/7", 20),
        noted("image/e1/7", 10),
        noted("image/e1/8", 1, complete=False),
    ]
    (tmp_path / "seconds.jsonl").write_text("".join(lines))
    both = [tasks.tasks["image/e2/0"], tasks.tasks["image/from_self/0"]]
    assert schedule.seconds_left(both, tmp_path) == pytest.approx(50 + 30)


def test_a_line_that_a_full_disk_cut_off_is_passed_over(tmp_path, tasks):
    whole = noted("image/e1/7", 10)
    (tmp_path / "seconds.jsonl").write_text(whole + '{"key": "image/e1/8", "sec')
    assert schedule.spent(tmp_path).keys() == {"image/e1/7 as configured"}
    (tmp_path / "seconds.jsonl").write_text(whole + "torn\n")
    with pytest.raises(JsonError, match=r"seconds\.jsonl, line 2"):
        schedule.spent(tmp_path)


def test_a_line_that_does_not_say_which_task_it_is_of_is_refused(tmp_path):
    (tmp_path / "seconds.jsonl").write_text(
        '{"key": "image/e1/7", "seconds": 10, "workers": 1, "complete": true, "code": "VCap-JAX 1"}\n'
    )
    with pytest.raises(JsonError, match=r"seconds\.jsonl, line 1: task: field required"):
        schedule.spent(tmp_path)
