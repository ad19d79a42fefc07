"""Reads finished runs: counts of their held-out captions, and how they learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from vcap_jax.data.references import ReferencePool
from vcap_jax.references.note import POOL_NOTE, read_note
from vcap_jax.report.metrics import Scalar, read_metrics
from vcap_jax.report.world_facts import count_captions
from vcap_jax.studies.arms import ACCOMPANY, MODALITIES
from vcap_jax.studies.case_study import case_text
from vcap_jax.studies.results import (
    CaseText,
    Known,
    SeedResult,
    TaskResult,
    Worlds,
    heldout_captions,
    heldout_folder,
    identity,
    machine,
    versions,
)
from vcap_jax.studies.schedule import Spent, spent
from vcap_jax.studies.tasks import Plan, Task
from vcap_jax.studies.witnesses import meet
from vcap_jax.world.scenes import Modality

_MET = ("base", "e1", "e2")

Results = Mapping[Modality, Mapping[str, Mapping[int, SeedResult]]]
"""By modality, row (an arm, or what comes with one) and seed."""


def collect(plan: Plan, out: Path, known: Known = MappingProxyType({})) -> Known:
    """What is complete in ``out``, and of the plan's other tasks what is ``known`` from elsewhere. Raises OSError for
    a complete run whose files are gone."""
    worlds = {task.world: Worlds(out / "worlds" / task.world / "data") for task in plan.tasks.values()}
    found: dict[str, TaskResult] = {}
    taken = spent(out)
    for task in plan.tasks.values():
        name = identity(task)
        if task.complete(out):
            here, own = worlds[task.world], taken.get(name) or Spent(key=task.key)
            by = own.versions or versions()
            found[name] = TaskResult(
                rows=_rows(task, out, here),
                machine=own.machine or machine(),
                software=by if own.code is None else f"{own.code}, {by}",
                workers=own.workers,
                seconds=own.seconds,
                case=_case(plan, task, out, here),
            )
        elif name in known:
            found[name] = known[name]
    return found


def by_row(plan: Plan, known: Known) -> Results:
    """The rows of tables. An arm that is the same computation as another one has its row."""
    results: dict[Modality, dict[str, dict[int, SeedResult]]] = {}
    for modality in MODALITIES:
        arms = {arm for by_modality in plan.studies.values() for arm in by_modality.get(modality, ())}
        rows: dict[str, dict[int, SeedResult]] = {}
        sources = {**{arm: arm for arm in sorted(arms)}, **{row: arm for row, (arm, _) in ACCOMPANY.items()}}
        for row, arm in sources.items():
            for seed, task in plan.of(arm, modality).items():
                if (result := known.get(identity(task))) is not None:
                    rows.setdefault(row, {})[seed] = result.rows[task.arm if row == arm else row]
        if rows:
            results[modality] = rows
    return results


def in_common(
    first: Mapping[int, SeedResult], second: Mapping[int, SeedResult]
) -> tuple[list[SeedResult], list[SeedResult]]:
    """The results of two rows by the seeds that both have, in one order."""
    seeds = sorted(set(first) & set(second))
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def _rows(task: Task, out: Path, worlds: Worlds) -> dict[str, SeedResult]:
    run = task.run(out)
    heldout = heldout_folder(run)
    curve = [
        (step["facts/coverage"], step["facts/hallucination"])
        for step in read_metrics(run / "metrics.jsonl")
        if "facts/coverage" in step
    ]
    learned_from = _reference_size(run, worlds) if task.kind != "distill" else None
    trained = heldout_captions(heldout / "trained.jsonl")
    rows = {task.arm: _measured(task.arm, run, trained, worlds, curve, learned_from)}
    for row, (arm, _) in ACCOMPANY.items():
        if arm == task.arm:
            captions = heldout_captions(heldout / "start.jsonl") if row == "base" else _references(run)
            rows[row] = _measured(row, run, captions, worlds)
    return rows


def _measured(
    row: str,
    run: Path,
    captions: Mapping[str, Sequence[str]],
    worlds: Worlds,
    curve: Sequence[tuple[Scalar, Scalar]] = (),
    reference_size: float | None = None,
) -> SeedResult:
    return SeedResult(
        counts=count_captions(worlds["heldout"], captions),
        curve=np.array(curve, np.float64).reshape(-1, 2),
        reference_size=reference_size,
        meetings=meet(worlds["heldout"], captions, _references(run)) if row in _MET else None,
    )


def _references(run: Path) -> Mapping[str, Sequence[str]]:
    return ReferencePool.read(heldout_folder(run) / "references.jsonl").texts()


def _case(plan: Plan, task: Task, out: Path, worlds: Worlds) -> CaseText | None:
    e1 = plan.of("e1", task.modality).get(task.seed)
    if task.arm != "e2" or e1 is None or not e1.complete(out):
        return None
    return case_text(e1.run(out), task.run(out), worlds["heldout"])


def _reference_size(run: Path, worlds: Worlds) -> float | None:
    """Mean true facts in a reference of the pool that a run learned from; None for rewards without references."""
    noted = read_note(run / POOL_NOTE)
    if noted is None:
        return None
    # By name, beside the run or where the studies keep pools: folders may have moved.
    source = Path(noted.source)
    near = [run / "references", run.parent / "pools", *(parent / "pools" for parent in run.parents[:4])]
    path = next((folder / source.name for folder in near if (folder / source.name).exists()), source)
    references = ReferencePool.read(path).texts()
    counts = count_captions(worlds["train"], references)
    return float(counts.correct.sum() / sum(map(len, references.values())))
