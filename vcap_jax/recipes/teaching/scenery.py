"""Scenes of a split with their pictures, rendered once and kept on disk from run to run."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vcap_jax.data.jsonl import read_objects
from vcap_jax.recipes.teaching.drawn import draw
from vcap_jax.system.files import replace_file, write_through
from vcap_jax.world.scenes import Scene, scene_from_json, scene_to_json
from vcap_jax.world.tiny_policy import Prompts


@dataclass(frozen=True)
class Scenery:
    """Scenes, and what the vision tower is given of them: patches, uint8 [N, frames, patches, numbers]."""

    scenes: Sequence[Scene]
    patches: np.ndarray


def scenery(prompts: Prompts, split: str, count: int, kept: Path) -> Scenery:
    """The first ``count`` scenes of a split, drawn by all cores unless their pictures lie in the folder ``kept``."""
    modality = prompts.modality
    file = kept / f"{modality}-{split}-{count}.npy"
    known = file.with_suffix(".jsonl")
    if not file.exists():
        with multiprocessing.get_context("spawn").Pool() as pool:
            drawn = pool.map(draw, [(modality, split, index) for index in range(count)], chunksize=32)
        rows = "".join(json.dumps(scene_to_json(scene)) + "\n" for scene, _ in drawn)
        patches = np.stack([prompts.patches(pixels) for _, pixels in drawn])
        del drawn
        replace_file(known, rows.encode())
        # Last: where it is, both are whole.
        write_through(file, lambda path: np.save(path, patches))
    scenes = [scene_from_json(row) for _, row in read_objects(known, "file of scenes")]
    return Scenery(scenes, np.load(file, mmap_mode="r"))
