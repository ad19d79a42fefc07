"""Held-out captions by several processes, some of which have nothing to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.processes_in_threads import in_threads
from vcap_jax.data.jsonl import read_objects
from vcap_jax.data.manifest import Sample
from vcap_jax.distributed import Processes
from vcap_jax.heldout import HeldOut
from vcap_jax.report.run_folder import RunFolder
from vcap_jax.rollout.captioner import Captioned, Captioner
from vcap_jax.world.dataset import write_dataset


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
        place: Any = SimpleNamespace(
            folder=RunFolder(tmp_path),
            processes=processes,
            config=SimpleNamespace(seed=1),
            own_params=lambda params: params,
            captioner=_Captioner,
        )
        HeldOut(place, world).captions("start", {})

    in_threads(count, captions)
    rows = [row for _, row in read_objects(tmp_path / "heldout" / "start.jsonl", "captions")]
    assert [row["captions"] for row in rows] == [[f"2000004 {place}"] for place in range(3)]
