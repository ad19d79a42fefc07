"""The embedded run's data: scenes rendered into the run folder, and the facts to count captions by."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.embedded_world.config import WorldConfig
from vcap_jax.embedded_world.dataset import MANIFEST, read_scenes, write_dataset
from vcap_jax.embedded_world.scenes import Modality, Scene


@dataclass(frozen=True)
class EmbeddedData:
    """Manifests of the two splits, and the scenes of the held-out one by id."""

    train: Path
    heldout: Path
    train_scenes: Mapping[str, Scene]
    heldout_scenes: Mapping[str, Scene]


def prepare_embedded_data(folder: Path, modality: Modality, world: WorldConfig) -> EmbeddedData:
    """Renders both splits into ``folder``, unless an earlier start of the same run has done so.

    A split appears complete or not at all, so a run killed while rendering simply renders it again.
    """
    scenes: dict[str, Mapping[str, Scene]] = {}
    for split, count in (("train", world.train_scenes), ("heldout", world.heldout_scenes)):
        target = folder / split
        if not target.is_dir():
            partial = folder / f".{split}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            write_dataset(partial, modality, split, count, world.seed)
            partial.rename(target)
        scenes[split] = read_scenes(target)
    return EmbeddedData(
        train=folder / "train" / MANIFEST,
        heldout=folder / "heldout" / MANIFEST,
        train_scenes=scenes["train"],
        heldout_scenes=scenes["heldout"],
    )
