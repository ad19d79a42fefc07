"""What a finished run leaves, and what is left of it once its folder is gone: a line of JSON, from which every report
can be made again.

Studies of several machines, or of several days, are joined by their lines. A line is known by the run's folder, which
is named by a digest of the configuration, by the starting policy and by the world's rules: results of others do not
mix. The code that made it is told in ``software``.
"""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from vcap_jax import __version__
from vcap_jax.data.jsonl import read_objects
from vcap_jax.evals.config import HELDOUT
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.summary import FactCounts
from vcap_jax.studies.arms import MODALITIES
from vcap_jax.studies.tasks import Plan, Task
from vcap_jax.studies.witnesses import Meetings
from vcap_jax.system.digests import digest_of
from vcap_jax.system.errors import VCapError
from vcap_jax.system.files import replace_file
from vcap_jax.system.host_limits import usable_cores
from vcap_jax.system.json_records import array_of, as_record, record_values
from vcap_jax.system.json_values import JsonError, as_list, as_text
from vcap_jax.world.backbone import BACKBONE_FOLDER
from vcap_jax.world.captions import full_caption, weak_caption
from vcap_jax.world.dataset import read_scenes, sample_scene
from vcap_jax.world.facts import count_facts
from vcap_jax.world.scenes import Scene

EARLY_STEPS = 10
"""Speed is the mean coverage of the training captions over the first so many steps."""
LEVEL = 0.3
"""And the number of steps until the coverage, averaged over ``WINDOW`` steps, reaches this level."""
WINDOW = 3

_SCENES = 16
"""Of each modality, that the world is known by."""

Curve = Annotated[np.ndarray, array_of(np.float64, columns=2)]


class ResultsError(VCapError, ValueError):
    """A file of results cannot be read; the message names file and line."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run. counts: of its held-out captions, over scenes in the order of the split.

    curve: coverage and false claims of the training captions, step by step, [T, 2]; empty for supervised runs and rows
    that were not trained. reference_size: mean m, true facts in a reference that it learned from. meetings: of the
    held-out captions with the held-out references.
    """

    counts: FactCounts
    curve: Curve
    reference_size: float | None = None
    meetings: Meetings | None = None

    @property
    def early_coverage(self) -> float | None:
        """Mean coverage over the first ``EARLY_STEPS`` steps; None for shorter runs and those without steps."""
        return float(self.curve[:EARLY_STEPS, 0].mean()) if len(self.curve) >= EARLY_STEPS else None

    @property
    def steps_to_level(self) -> int | None:
        """The first step up to which ``WINDOW`` steps reach ``LEVEL`` on average; None if it is never reached."""
        if len(self.curve) < WINDOW:
            return None
        means = np.convolve(self.curve[:, 0], np.full(WINDOW, 1 / WINDOW), "valid")
        reached = np.flatnonzero(means >= LEVEL)
        return int(reached[0]) + WINDOW if len(reached) else None


@dataclass(frozen=True, kw_only=True)
class CaseText:
    """Captions of one held-out scene, each with who wrote it, in words."""

    scene: str
    captions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """A finished task, as a line holds it. machine, software, workers, seconds: how it was made; workers: tasks at a
    time. rows: what it gives to tables. case: of the seed that shows one."""

    machine: str
    software: str
    workers: int
    seconds: float | None
    rows: Mapping[str, SeedResult]
    case: CaseText | None = None


Known = Mapping[str, TaskResult]
"""Finished tasks by ``identity``."""


def identity(task: Task) -> str:
    """What a task's result is known by, on every machine."""
    return f"{task.folder}/{task.result}"


def write_results(path: Path, known: Known) -> None:
    """One line for each task, in the order of their identities. Lines of other tasks that the file has stay, also those
    that another starting policy or world made: their runs may be gone. Raises ResultsError for a file that is none."""
    made_with = {"policy": policy_digest(), "world": world_digest()}
    rows = {
        (name, *made_with.values()): {"task": name, **made_with, **record_values(known[name])}
        for name in known
    }
    if path.exists():
        for line, row in read_objects(path, "file of results"):
            try:
                key = tuple(as_text(row.get(part), part) for part in ("task", "policy", "world"))
            except JsonError as error:
                raise ResultsError(
                    f"{path}, line {line}: no result ({error}); this file is written anew: put it elsewhere"
                ) from None
            rows.setdefault(key, row)
    lines = [json.dumps(rows[key], separators=(",", ":")) for key in sorted(rows)]
    replace_file(path, "".join(line + "\n" for line in lines).encode())


def read_results(paths: Iterable[Path]) -> tuple[dict[str, TaskResult], int]:
    """The tasks of all files, and how many lines were left out as another starting policy or world made them.

    Of a task that stands in several files the last counts. Raises ResultsError for a file that is none, OSError.
    """
    made_with, others = (policy_digest(), world_digest()), 0
    known: dict[str, TaskResult] = {}
    for path in paths:
        for line, row in read_objects(path, "file of results"):
            try:
                if (as_text(row.get("policy"), "policy"), as_text(row.get("world"), "world")) == made_with:
                    known[as_text(row.get("task"), "task")] = as_record(TaskResult, row, "a result")
                else:
                    others += 1
            except JsonError as error:
                raise ResultsError(
                    f"{path}, line {line}: {error}; give a results.jsonl that launch/reproduce.py wrote"
                ) from None
    return known, others


def known_keys(plan: Plan, known: Known) -> frozenset[str]:
    """Keys of the plan's tasks that need not be run for their results."""
    return frozenset(key for key, task in plan.tasks.items() if identity(task) in known)


def heldout_folder(run: Path) -> Path:
    """Where a run keeps the captions of its held-out scenes."""
    return RunFolder(run).evaluation(HELDOUT)


def heldout_captions(path: Path) -> dict[str, list[str]]:
    """Captions by scene, as ``vcap_jax.run.evaluation`` writes them.

    Raises ResultsError for a scene that could not be captioned: rows of fewer scenes than others have do not compare.
    """
    found: dict[str, list[str]] = {}
    for number, row in read_objects(path, "file of captions"):
        identity, failure = as_text(row.get("id"), f"{path}:{number}: id"), row.get("failure")
        if failure is not None:
            raise ResultsError(
                f"{path}:{number}: {identity} was not captioned ({failure}): remove {path.stem}.* beside that file and "
                "the run's summary.json, and go on with the study, which captions these scenes anew"
            )
        captions = as_list(row.get("captions"), f"{path}:{number}: captions")
        found[identity] = [as_text(one, f"{path}:{number}: caption") for one in captions]
    return found


class Worlds:
    """Scenes of a modality by split, read once. data: their folder."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._scenes: dict[str, Mapping[str, Scene]] = {}

    def __getitem__(self, split: str) -> Mapping[str, Scene]:
        if split not in self._scenes:
            self._scenes[split] = read_scenes(self._data / split)
        return self._scenes[split]


@functools.cache
def policy_digest() -> str:
    """Of the starting policy that comes with the package."""
    return digest_of((BACKBONE_FOLDER / "model.safetensors").read_bytes(), size=8)


@functools.cache
def world_digest() -> str:
    """Of the world's rules: which scenes there are, how captions are worded and how their facts are counted. How scenes
    are drawn is not in it."""
    told: list[object] = []
    for modality in MODALITIES:
        for index in range(_SCENES):
            scene = sample_scene(modality, 0, index, "heldout")
            rng = np.random.default_rng(index)
            captions = [full_caption(scene, rng), weak_caption(scene, rng)]
            counted = [asdict(count_facts(scene, caption)) for caption in captions]
            told.append([repr(scene), captions, counted])
    return digest_of(json.dumps(told), size=8)


@functools.cache
def machine() -> str:
    """This one: its processor, and how many cores may be used."""
    return f"{_processor()}, {usable_cores()} cores"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> str:
    """Of what this package computes with here."""
    return f"Python {platform.python_version()}, JAX {jax.__version__}"


@functools.cache
def code_version() -> str:
    """Of this package, in a clone with the commit, and a "+" where its files differ from that."""
    root, told = Path(__file__).resolve().parents[2], f"VCap-JAX {__version__}"
    if not (root / ".git").exists():
        return told
    describe = ["git", "-C", str(root), "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git
        return told
    return told if done.returncode else f"{told} at {done.stdout.strip()}"
