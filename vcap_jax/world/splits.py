"""The embedded run's data: scenes rendered into the run folder, and the facts to count captions by."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.system.file_locks import waited_for
from vcap_jax.world.config import WorldConfig
from vcap_jax.world.dataset import MANIFEST, ScenesError, read_scenes, sample_scene, write_dataset
from vcap_jax.world.scenes import Modality, Scene


@dataclass(frozen=True)
class EmbeddedData:
    """Manifests of the two splits, and the scenes of the held-out one by id."""

    train: Path
    heldout: Path
    train_scenes: Mapping[str, Scene]
    heldout_scenes: Mapping[str, Scene]


def prepare_embedded_data(folder: Path, modality: Modality, world: WorldConfig) -> EmbeddedData:
    """Renders both splits into ``folder``, unless an earlier start of the same run has done so. Of several processes
    that come at once one renders, and the others wait.

    A split appears complete or not at all, so a run killed while rendering simply renders it again. Raises ScenesError
    for a folder that holds other scenes.
    """
    scenes: dict[str, Mapping[str, Scene]] = {}
    for split, count in (("train", world.train_scenes), ("heldout", world.heldout_scenes)):
        target = folder / split
        if not target.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            with waited_for(folder / f".{split}.lock"):
                _rendered(target, modality, count, world.seed)
        scenes[split] = read_scenes(target)
        # The scenes follow from modality, split, seed and number: the first tells them all.
        first = sample_scene(modality, world.seed, 0, split)
        if len(scenes[split]) != count or next(iter(scenes[split].values())) != first:
            raise ScenesError(
                f"{target} holds {len(scenes[split])} other scenes than {count} {modality}s of world.seed "
                f"{world.seed}, which are asked for: give an output in another folder, or the settings (modality, "
                "world.*) that these were rendered with"
            )
    return EmbeddedData(
        train=folder / "train" / MANIFEST,
        heldout=folder / "heldout" / MANIFEST,
        train_scenes=scenes["train"],
        heldout_scenes=scenes["heldout"],
    )


def _rendered(target: Path, modality: Modality, count: int, seed: int) -> None:
    if target.is_dir():  # by whoever was waited for
        return
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    write_dataset(partial, modality, target.name, count, seed)
    partial.rename(target)
