"""Held-out captions by several processes, some of which have nothing to do, and what they come to."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.manifest import Sample
from vcap_jax.data.references import PoolEntry, ReferencePool
from vcap_jax.evals.heldout import HeldOut
from vcap_jax.parallel.processes import Processes
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.captioner import Captioned, Captioner
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import read_scenes, write_dataset
from vcap_jax.world.facts import scene_facts


class _Captioner:
    """Captions are the seed and a sample's place; of no samples it does what a captioner does."""

    def run(self, params: Any, samples: list[Sample], *, seed: int, first: int) -> Any:
        if not samples:
            captioner = object.__new__(Captioner)
            yield from captioner.run(params, samples, seed=seed, first=first)
        for index, sample in enumerate(samples):
            yield Captioned(sample, (f"{seed} {first + index}",), (2,), (False,))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_processes_without_a_scene_of_their_own_wait_for_the_others(count: int, tmp_path: Path) -> None:
    write_dataset(tmp_path / "heldout", "image", "heldout", 3, seed=0)
    world: Any = SimpleNamespace(heldout=tmp_path / "heldout" / "manifest.jsonl")

    def captions(processes: Processes) -> None:
        ctx: Any = SimpleNamespace(
            folder=RunFolder(tmp_path),
            processes=processes,
            config=SimpleNamespace(seed=1),
            own_params=lambda params: params,
            captioner=_Captioner,
        )
        HeldOut(ctx, world).captions("start", {})

    in_threads(count, captions)
    rows = [row for _, row in read_objects(tmp_path / "heldout" / "start.jsonl", "captions")]
    assert [row["captions"] for row in rows] == [[f"2000004 {place}"] for place in range(3)]


def test_every_scene_counts_also_one_without_a_reference(tmp_path: Path) -> None:
    """A pool has no entry for an empty text: that scene's facts are not covered."""
    write_dataset(tmp_path / "data", "image", "heldout", 4, seed=0)
    scenes = read_scenes(tmp_path / "data")
    full = {name: full_caption(scene, np.random.default_rng(0)) for name, scene in scenes.items()}
    first, *others = scenes
    world: Any = SimpleNamespace(heldout=tmp_path / "data" / "manifest.jsonl", heldout_scenes=scenes)
    ctx: Any = SimpleNamespace(
        folder=RunFolder(tmp_path), config=SimpleNamespace(references=SimpleNamespace(per_sample=1))
    )
    folder = tmp_path / "heldout"
    pool = ReferencePool(PoolEntry(id=name, references=(full[name],)) for name in others)
    pool.write(folder / "references.jsonl")
    lines = [json.dumps({"id": name, "captions": [full[name]] * 8}) for name in scenes]
    for row in ("start", "trained"):
        (folder / f"{row}.jsonl").write_text("\n".join(lines))
    summary = HeldOut(ctx, world).summary(1.0)
    facts = {name: len(scene_facts(scene)) for name, scene in scenes.items()}
    assert [summary[row]["scenes"] for row in ("references", "start", "trained")] == [4, 4, 4]
    assert summary["references"]["coverage"] == 1 - facts[first] / sum(facts.values())
    assert summary["references"]["hallucination"] == 0
    assert summary["start"]["coverage"] == 1
    # Eight captions of a scene claim no more than one does.
    assert summary["start"]["claims_per_caption"] == sum(facts.values()) / 4
