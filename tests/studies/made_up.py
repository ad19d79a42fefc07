"""Result folders as finished runs leave them, with captions of chosen quality; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.references.note import POOL_NOTE, write_note
from vcap_jax.studies.results import heldout_folder
from vcap_jax.studies.tasks import Plan, Task
from vcap_jax.world.captions import WeakSettings, weak_caption
from vcap_jax.world.scenes import Scene
from vcap_jax.world.splits import prepare_embedded_data

SMALL = ["world.train_scenes=6", "world.heldout_scenes=12", "rollout.group_size=2"]
"""For plans whose results are made up: worlds that are rendered in a moment."""


def caption(scene: Scene, rng: np.random.Generator, quality: float) -> str:
    """1 says everything and nothing false; 0.5 covers about half and is wrong in a seventh of its claims."""
    lack = 1 - quality
    weak = WeakSettings(
        omit_object=0.64 * lack,
        omit_fact=0.48 * lack,
        wrong_fact=0.06 * lack,
        invent_object=0.5 * lack,
    )
    return weak_caption(scene, rng, weak)


def make_up(plan: Plan, out: Path, quality: Mapping[str, float], *, skip: set[str] | None = None) -> None:
    """Completes every task but those in ``skip``. quality: by arm, 0.9 where it has none; of the base 0.5."""
    for task in plan.tasks.values():
        if task.key in (skip or set()):
            continue
        world = prepare_embedded_data(
            out / "worlds" / task.world / "data", task.modality, plan.configs[task.key].world
        )
        rng = np.random.default_rng([task.seed, len(task.arm), *task.arm.encode()])
        run = task.run(out)
        held = world.heldout_scenes
        _captions(heldout_folder(run) / "start.jsonl", held, rng, 0.5)
        _captions(heldout_folder(run) / "trained.jsonl", held, rng, quality.get(task.arm, 0.9))
        _pool(heldout_folder(run) / "references.jsonl", held, rng, 0.5)
        _pool(run / "references" / "train.jsonl", world.train_scenes, rng, 0.5)
        learned = run / "references" / "train.jsonl"
        write_note(run / POOL_NOTE, ReferencePool.read(learned), str(learned))
        _metrics(run / "metrics.jsonl", task, rng, quality.get(task.arm, 0.9))
        (run / "summary.json").write_text("{}")


def _captions(path: Path, scenes: Mapping[str, Scene], rng: np.random.Generator, quality: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": name, "captions": [caption(scene, rng, quality) for _ in range(2)], "tokens": [1, 1]}
        for name, scene in scenes.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _pool(path: Path, scenes: Mapping[str, Scene], rng: np.random.Generator, quality: float) -> None:
    ReferencePool(
        PoolEntry(id=name, references=(caption(scene, rng, quality),)) for name, scene in scenes.items()
    ).write(path)


def _metrics(path: Path, task: Task, rng: np.random.Generator, quality: float) -> None:
    if task.kind == "distill":
        path.write_text("")
        return
    rows = []
    for step in range(1, 31):
        share = quality - (quality - 0.5) * np.exp(-step / 5) + rng.normal(0, 0.01)
        rows.append(
            {"step": step, "facts/coverage": float(share), "facts/hallucination": float(0.5 - share / 2)}
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
