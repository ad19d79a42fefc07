"""Runs tasks side by side in processes of their own, each on its own core, and says how far it is.

What is complete is skipped, what was begun goes on where it stopped, and a task that fails is named with its log while
the others go on; those that need it are left for the next start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vcap_jax.report.progress import duration
from vcap_jax.studies.perform import write_task
from vcap_jax.studies.results import code_version, identity, machine, versions
from vcap_jax.studies.tasks import Plan, Task
from vcap_jax.system import file_locks
from vcap_jax.system.child_python import child_environment
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import drop_torn_end, tail
from vcap_jax.system.json_records import parse_record
from vcap_jax.system.shutdown import finishing, raise_if_requested
from vcap_jax.world.splits import prepare_embedded_data

EXPECTED_SECONDS: Mapping[str, float] = {"image": 120.0, "video": 300.0}
"""Of a task that nothing is known of yet; for the time left alone."""


class ScheduleError(VCapError, RuntimeError):
    """The folder cannot be used; the message names the remedy."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """failed: keys with their logs. blocked: keys of tasks that need a failed one."""

    failed: Mapping[str, Path]
    blocked: tuple[str, ...]


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    core: int
    log: Path
    began: float = field(default_factory=time.monotonic)


def only_one(out: Path) -> AbstractContextManager[None]:
    """Holds the folder for this program. Raises ScheduleError while another one, or a process of it, is at work."""
    return file_locks.only_one(out, ScheduleError, "give another --out", inherited=True)


def work(
    plan: Plan,
    out: Path,
    *,
    workers: int,
    say: Callable[[str], None] = print,
    on_done: Callable[[Task], None] = lambda task: None,
    known: Container[str] = (),
) -> Outcome:
    """Does what is left of the plan, ``workers`` tasks at a time.

    known: keys of tasks whose results are there already; they are done only if another task needs their folder.

    on_done: called after each task that was completed now. A signal ends the runs at work in order, and raises Stopped.
    """
    if workers < 1:
        raise ScheduleError(f"{workers} workers: give at least one")
    waiting = outstanding(plan, out, known)
    total, done = len(plan.tasks), len(plan.tasks) - len(waiting)
    for task in {task.world: task for task in waiting}.values():
        # Once, before several runs would do it at the same time.
        data = out / "worlds" / task.world / "data"
        prepare_embedded_data(data, task.modality, plan.configs[task.key].world)
    say(f"{total} runs, {done} complete, {workers} at a time; logs in {out / 'logs'}")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    running: list[_Running] = []
    failed: dict[str, Path] = {}
    # Between two looks, so that no run is begun that nobody would end.
    with finishing("the step of each run at work"):
        try:
            while waiting or running:
                raise_if_requested()
                for task in _ready(waiting, running, plan, out):
                    if len(running) == workers:
                        break
                    waiting.remove(task)
                    # Side by side, a core each is quicker than all cores for everybody.
                    slot = min(set(range(workers)) - {r.core for r in running})
                    own = [str(cores[slot])] if 1 < workers <= len(cores) else []
                    running.append(_start(plan, task, out, slot, own))
                if not running:
                    break  # the rest needs what has failed
                time.sleep(0.2)
                for one in [r for r in running if r.process.poll() is not None]:
                    running.remove(one)
                    seconds = time.monotonic() - one.began
                    if one.process.returncode != 0 or not one.task.complete(out):
                        _note(out, one.task, seconds, workers, complete=False)
                        failed[one.task.key] = one.log
                        status = one.process.returncode
                        say(
                            f"{one.task.key} FAILED with {status}; the end of {one.log}:\n{tail(one.log, 12)}"
                        )
                        continue
                    done += 1
                    _note(out, one.task, seconds, workers, complete=True)
                    left = seconds_left([*waiting, *(r.task for r in running)], out) / workers
                    say(
                        f"{done}/{total}  {one.task.key} in {seconds:.0f} s; "
                        f"{total - done} left, about {duration(left)}"
                    )
                    on_done(one.task)
        finally:
            for one in running:
                one.process.terminate()
            for one in running:
                one.process.wait()
                _note(out, one.task, time.monotonic() - one.began, workers, complete=one.task.complete(out))
    return Outcome(failed=failed, blocked=tuple(task.key for task in waiting))


def outstanding(plan: Plan, out: Path, known: Container[str] = ()) -> list[Task]:
    """The tasks that are left to do, in order. known: as ``work`` takes it."""
    needed = {key for key, task in plan.tasks.items() if not task.complete(out) and key not in known}
    reached = list(needed)
    while reached:
        for key in plan.tasks[reached.pop()].after:
            if key not in needed and not plan.tasks[key].complete(out):
                needed.add(key)
                reached.append(key)
    return [task for key, task in plan.tasks.items() if key in needed]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a task took so far, all its starts together. seconds: those of starts that did not complete it included.
    workers: tasks at a time. code, machine, versions: which did it, several where several started it. complete: whether
    a start was. The defaults are those of a task of which nothing is noted."""

    key: str
    seconds: float | None = None
    workers: int = 1
    code: str | None = None
    machine: str | None = None
    versions: str | None = None
    complete: bool = False


def spent(out: Path) -> dict[str, Spent]:
    """By the ``identity`` of every task that was started, for another configuration of the same key is another run."""
    by_task: dict[str, list[_Start]] = {}
    for start in _starts(out):
        by_task.setdefault(start.task, []).append(start)
    return {
        name: Spent(
            key=starts[-1].key,
            seconds=sum(start.seconds for start in starts),
            workers=starts[-1].workers,
            code=_joined(start.code for start in starts),
            machine=_joined(start.machine for start in starts),
            versions=_joined(start.versions for start in starts),
            complete=any(start.complete for start in starts),
        )
        for name, starts in by_task.items()
    }


def _joined(told: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(told))


@dataclass(frozen=True, kw_only=True)
class _Start:
    """A line of seconds.jsonl: one start of a task."""

    key: str
    seconds: float
    workers: int
    complete: bool
    code: str
    task: str
    machine: str
    versions: str


def _starts(out: Path) -> list[_Start]:
    path = out / "seconds.jsonl"
    if not path.exists():
        return []
    # What a killed process left after the last line end was never a start.
    lines = path.read_bytes().split(b"\n")[:-1]
    return [
        parse_record(_Start, line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line
    ]


def _ready(waiting: list[Task], running: list[_Running], plan: Plan, out: Path) -> list[Task]:
    """Tasks whose predecessors are complete and in whose folder nobody works, first ones first."""
    busy = {r.task.folder for r in running}
    return [
        task
        for task in waiting
        if task.folder not in busy and all(plan.tasks[key].complete(out) for key in task.after)
    ]


def _start(plan: Plan, task: Task, out: Path, slot: int, cores: list[str]) -> _Running:
    write_task(out, plan, task.key)
    log = out / "logs" / f"{task.key.replace('/', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = child_environment()
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with log.open("ab") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "vcap_jax.studies.perform", str(out), task.key, str(os.getpid()), *cores],
            stdout=target,
            stderr=subprocess.STDOUT,
            env=environment,
            close_fds=False,  # the folder's lock goes with every process that works in it
            # Ctrl-C reaches this program alone, which then ends them in order; without it they end by themselves.
            start_new_session=True,
        )
    return _Running(task=task, process=process, core=slot, log=log)


def _note(out: Path, task: Task, seconds: float, workers: int, *, complete: bool) -> None:
    start = _Start(
        key=task.key,
        seconds=round(seconds, 1),
        workers=workers,
        complete=complete,
        code=code_version(),
        task=identity(task),
        machine=machine(),
        versions=versions(),
    )
    path = out / "seconds.jsonl"
    drop_torn_end(path)
    with path.open("a", encoding="utf-8") as log:
        log.write(json.dumps(asdict(start)) + "\n")


def seconds_left(tasks: list[Task], out: Path) -> float:
    """By what the same arm took with other seeds, else its modality so far."""
    by_arm: dict[str, list[float]] = {}
    by_modality: dict[str, list[float]] = {}
    for taken in spent(out).values():
        if taken.complete and taken.seconds is not None:
            modality, arm, _ = taken.key.split("/")
            by_arm.setdefault(f"{modality}/{arm}", []).append(taken.seconds)
            by_modality.setdefault(modality, []).append(taken.seconds)
    left = 0.0
    for task in tasks:
        known = by_arm.get(f"{task.modality}/{task.arm}") or by_modality.get(task.modality)
        left += sum(known) / len(known) if known else EXPECTED_SECONDS[task.modality]
    return left
