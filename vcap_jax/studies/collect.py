"""Reads finished runs: counts of their held-out captions, and how they learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.references import ReferencePool
from vcap_jax.evals.config import HELDOUT
from vcap_jax.references.note import POOL_NOTE, read_note
from vcap_jax.report.metrics import read_metrics
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.report.summary import FactCounts
from vcap_jax.report.world_facts import count_captions
from vcap_jax.studies.arms import ACCOMPANY, MODALITIES
from vcap_jax.studies.tasks import Plan, Task
from vcap_jax.studies.witnesses import Meetings, meet
from vcap_jax.system.json_values import as_list, as_text
from vcap_jax.world.dataset import read_scenes
from vcap_jax.world.scenes import Modality, Scene

EARLY_STEPS = 10
"""Speed is the mean coverage of the training captions over the first so many steps."""
LEVEL = 0.9
"""And the number of steps until the coverage, averaged over ``WINDOW`` steps, reaches this level."""
WINDOW = 3

_MET = ("base", "e1", "e2")


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run. counts: of its held-out captions, over scenes in the order of the split.

    curve: coverage and false claims of the training captions, step by step, [T, 2]; empty for supervised runs and rows
    that were not trained. reference_size: mean m, true facts in a reference that it learned from. meetings: of the
    held-out captions with the held-out references.
    """

    counts: FactCounts
    curve: np.ndarray
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


Results = Mapping[Modality, Mapping[str, Mapping[int, SeedResult]]]
"""By modality, row (an arm, or what comes with one) and seed."""


def collect(plan: Plan, out: Path) -> Results:
    """Everything that is complete. Raises OSError for a complete run whose files are gone."""
    results: dict[Modality, dict[str, dict[int, SeedResult]]] = {}
    for modality in MODALITIES:
        rows: dict[str, dict[int, SeedResult]] = {}
        arms = {arm for by_modality in plan.studies.values() for arm in by_modality.get(modality, ())}
        here = [task for task in plan.tasks.values() if task.modality == modality]
        if not here:
            continue
        worlds = Worlds(out / "worlds" / here[0].world / "data")
        for arm in sorted(arms):
            for seed, task in plan.of(arm, modality).items():
                if task.complete(out):
                    rows.setdefault(arm, {})[seed] = _result(task, out, worlds)
        for row, (arm, _) in ACCOMPANY.items():
            for seed, task in plan.of(arm, modality).items():
                if task.complete(out):
                    rows.setdefault(row, {})[seed] = _beside(row, task, out, worlds)
        if rows:
            results[modality] = rows
    return results


def in_common(
    first: Mapping[int, SeedResult], second: Mapping[int, SeedResult]
) -> tuple[list[SeedResult], list[SeedResult]]:
    """The results of two rows by the seeds that both have, in one order."""
    seeds = sorted(set(first) & set(second))
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def heldout_folder(run: Path) -> Path:
    """Where a run keeps the captions of its held-out scenes."""
    return RunFolder(run).evaluation(HELDOUT)


def heldout_captions(path: Path) -> dict[str, list[str]]:
    """Captions by scene, as ``vcap_jax.run.evaluation`` writes them."""
    found: dict[str, list[str]] = {}
    for _, row in read_objects(path, "file of captions"):
        captions = as_list(row["captions"], f"{path}: captions")
        found[as_text(row["id"], f"{path}: id")] = [as_text(one, f"{path}: caption") for one in captions]
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


def _result(task: Task, out: Path, worlds: Worlds) -> SeedResult:
    run = task.run(out)
    rows = read_metrics(run / "metrics.jsonl")
    curve = [(row["facts/coverage"], row["facts/hallucination"]) for row in rows if "facts/coverage" in row]
    captions = heldout_captions(heldout_folder(run) / "trained.jsonl")
    return SeedResult(
        counts=count_captions(worlds["heldout"], captions),
        meetings=_meetings(run, captions, worlds) if task.arm in _MET else None,
        curve=np.array(curve, np.float64).reshape(-1, 2),
        reference_size=_reference_size(run, worlds) if task.kind != "distill" else None,
    )


def _beside(row: str, task: Task, out: Path, worlds: Worlds) -> SeedResult:
    heldout = heldout_folder(task.run(out))
    if row == "base":
        captions: Mapping[str, Sequence[str]] = heldout_captions(heldout / "start.jsonl")
    else:
        pool = ReferencePool.read(heldout / "references.jsonl")
        captions = {entry.id: entry.references for entry in pool.entries()}
    return SeedResult(
        counts=count_captions(worlds["heldout"], captions),
        curve=np.zeros((0, 2)),
        meetings=_meetings(task.run(out), captions, worlds) if row in _MET else None,
    )


def _meetings(run: Path, captions: Mapping[str, Sequence[str]], worlds: Worlds) -> Meetings:
    pool = ReferencePool.read(heldout_folder(run) / "references.jsonl")
    references = {entry.id: entry.references for entry in pool.entries()}
    return meet(worlds["heldout"], captions, references)


def _reference_size(run: Path, worlds: Worlds) -> float | None:
    """Mean true facts in a reference of the pool that a run learned from; None for rewards without references."""
    noted = read_note(run / POOL_NOTE)
    if noted is None:
        return None
    # By name, beside the run or where the studies keep pools: folders may have moved.
    source = Path(noted.source)
    near = [run / "references", run.parent / "pools", *(parent / "pools" for parent in run.parents[:4])]
    path = next((folder / source.name for folder in near if (folder / source.name).exists()), source)
    pool = ReferencePool.read(path)
    entries = {entry.id: entry.references for entry in pool.entries()}
    counts = count_captions(worlds["train"], entries)
    return float(counts.correct.sum() / sum(map(len, entries.values())))
