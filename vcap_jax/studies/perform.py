"""Does one task, in a process of its own: ``python -m vcap_jax.studies.perform OUT KEY PARENT``.

The task stands in OUT/tasks/KEY.json and its resolved configuration beside it, so that what a process does can be read
and repeated by hand. Runs are those of ``recipes.grpo``, ``self_improve`` and ``distill``, which the commands under
launch/ call; nothing about training is decided here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from vcap_jax.run.command_line import guarded, say
from vcap_jax.studies.tasks import CANDIDATES, Plan, PlanError, Task
from vcap_jax.system.files import replace_file
from vcap_jax.system.json_values import as_object, as_text, read_json_object

if TYPE_CHECKING:  # the cores are chosen before JAX starts its threads
    from vcap_jax.report.run_folder import RunFolder

_LENT_HELDOUT = ("references.jsonl", "start.jsonl")
_LENDERS = ("model", "data", "world", "references", "rollout", "mesh", "modality", "seed")


def write_task(out: Path, plan: Plan, key: str) -> None:
    """Leaves the task where its process looks for it."""
    from vcap_jax.configuration import dump_config

    path = _task_file(out, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".yaml").write_text(dump_config(plan.configs[key]), encoding="utf-8")
    task = plan.tasks[key]
    sources = {plan.tasks[k].arm: os.path.relpath(plan.tasks[k].run(out), out) for k in _ancestors(plan, key)}
    path.write_text(json.dumps({"task": asdict(task), "sources": sources}, indent=2), encoding="utf-8")


def perform(out: Path, key: str) -> None:
    """Runs, or goes on with, the task ``key``. Raises what the runs raise."""
    import jax

    from vcap_jax.configuration import load_config
    from vcap_jax.recipes.distill import Teacher, distill
    from vcap_jax.recipes.grpo import run
    from vcap_jax.recipes.self_improve import self_improve
    from vcap_jax.report.run_folder import RunFolder
    from vcap_jax.run.config import RunConfig
    from vcap_jax.run.folders import open_subrun

    path = _task_file(out, key)
    told = read_json_object(path)
    task = TypeAdapter(Task).validate_python(told["task"])
    where = as_object(told["sources"], f"{path}: sources")
    sources = {name: out / as_text(folder, f"{path}: {name}") for name, folder in where.items()}
    config = load_config(RunConfig, [path.with_suffix(".yaml")])
    # Not a setting of the runs: folders must be able to move.
    jax.config.update("jax_compilation_cache_dir", str(out / "compiled"))
    root = out / "runs" / task.folder
    if task.cut is not None:
        pool = _cut_pool(out, task, sources["e1"])
        config = replace(config, data=replace(config.data, references=str(pool)))
    folder = open_subrun(config, RunFolder(out / "worlds" / task.world), root)
    if task.kind == "improve":
        self_improve(config, folder, rounds=task.rounds, say=say)
    elif task.kind == "distill":
        chosen = [
            Teacher(name=name, source=None if name == "self" else str(sources[name]))
            for name in task.teachers
        ]
        _borrow(folder, sources["e1"])
        distill(config, folder, chosen, candidates=CANDIDATES, say=say)
    else:
        _borrow(folder, sources["e1"])
        run(config, folder, say=say)


def _cut_pool(out: Path, task: Task, lender: Path) -> Path:
    """The base's references of this seed, cut; written once."""
    from vcap_jax.data.references import Provenance, ReferencePool
    from vcap_jax.report.run_folder import RunFolder
    from vcap_jax.studies.cutting import cut_entries

    assert task.cut is not None
    whole = ReferencePool.read(RunFolder(lender).own_references)
    cut = ReferencePool(cut_entries(whole.entries(), task.modality, task.cut))
    if whole.header is None:
        raise PlanError(f"{lender} has a pool without a header: run its task again")
    theirs = whole.header.provenance
    provenance = Provenance(
        writer=f"{theirs.writer}, cut to {task.cut} sentences",
        weights=theirs.weights,
        seed=theirs.seed,
        settings=dict(theirs.settings) | {"sentences": task.cut},
        asked=theirs.asked,
    )
    path = out / "pools" / f"{task.folder}.jsonl"
    cut.write(path, provenance, created=whole.header.created)
    return path


def _borrow(folder: RunFolder, lender: Path) -> None:
    """Copies what the base wrote for this seed from e1's folder, where the settings that decide it are the same.

    A run writes nothing that is there already, and would have written the same.
    """
    from vcap_jax.configuration import load_config, plain_settings
    from vcap_jax.evals.config import HELDOUT
    from vcap_jax.report.run_folder import RunFolder
    from vcap_jax.run.config import RunConfig

    mine, theirs = (
        plain_settings(load_config(RunConfig, [root / "config.yaml"])) for root in (folder.root, lender)
    )
    for config in (mine, theirs):
        as_object(config["world"], "world").pop("judge_perception")
        as_object(config["data"], "data").pop("references")
    differing = [name for name in _LENDERS if mine[name] != theirs[name]]
    if differing:
        say(f"{', '.join(differing)} are not e1's, so the base writes references of its own for this run")
        return
    of_e1 = RunFolder(lender)
    kept = (of_e1.evaluation(HELDOUT), folder.evaluation(HELDOUT))
    lent = [
        (of_e1.own_references, folder.own_references),
        *((kept[0] / name, kept[1] / name) for name in _LENT_HELDOUT),
    ]
    for source, target in lent:
        if source.exists() and not target.exists():
            replace_file(target, source.read_bytes())


def _ancestors(plan: Plan, key: str) -> list[str]:
    found: list[str] = []
    for parent in plan.tasks[key].after:
        found += [*_ancestors(plan, parent), parent]
    return list(dict.fromkeys(found))


def _task_file(out: Path, key: str) -> Path:
    return out / "tasks" / f"{re.sub('/', '-', key)}.json"


def _end_with(parent: int) -> None:
    """A run whose scheduler is gone ends; it is resumed when the studies are started again."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> int:
    """OUT KEY, the process that this one ends with, and the cores to stay on, if not all."""
    out, key, parent, *cores = arguments
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores})
    _end_with(int(parent))

    return guarded(lambda: perform(Path(out), key), again="launch/reproduce.py, as it was started")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
