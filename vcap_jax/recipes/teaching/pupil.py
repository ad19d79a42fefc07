"""The policy while it is taught, and what it is shown."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vcap_jax.data.jsonl import read_objects
from vcap_jax.models.family import CaptionModel, Features, GraphDef, Params, Processor, PromptBatch
from vcap_jax.models.policy import frozen_filter
from vcap_jax.recipes.teaching.corpus import Packer
from vcap_jax.recipes.teaching.drawn import draw
from vcap_jax.system.files import replace_file, write_through
from vcap_jax.world.scenes import Modality, Scene, scene_from_json, scene_to_json
from vcap_jax.world.tiny_policy import Prompts

Tree = TypeVar("Tree")

_AT_ONCE = 64
"""Pictures that the tower looks at in one call."""


class Spread:
    """Puts batches and parameters on devices, by default on all of them: on a CPU one for each core.

    A step's products are small, so cores do better with rows of their own than with parts of one product."""

    def __init__(self, devices: Sequence[jax.Device] | None = None) -> None:
        self._devices = list(jax.devices() if devices is None else devices)

    def batch(self, tree: Tree) -> Tree:
        """A batch, divided along the first axis of its arrays.

        Where some array's rows cannot be divided evenly, every device has the whole and does the whole work.
        """
        if any(len(leaf) % len(self._devices) for leaf in jax.tree.leaves(tree)):
            return self.whole(tree)
        return jax.device_put(tree, self._sharding(PartitionSpec("rows")))

    def whole(self, tree: Tree) -> Tree:
        """The same on every device."""
        return jax.device_put(tree, self._sharding(PartitionSpec()))

    def alone(self, tree: Tree) -> Tree:
        """Brought to one device."""
        return jax.device_put(tree, self._devices[0])

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(Mesh(np.array(self._devices), ("rows",)), spec)


@dataclass(frozen=True)
class Pupil:
    """The policy, split into its vision tower and everything else, and the input side that goes with it."""

    graphdef: GraphDef
    visual: Params
    rest: Params
    processor: Processor
    packer: Packer
    prompts: dict[Modality, Prompts]

    @classmethod
    def of(cls, model: CaptionModel, processor: Processor, prompts: dict[Modality, Prompts]) -> Pupil:
        """Of a policy as a whole, all of it brought to one device: one that was loaded may lie in parts."""
        graphdef, visual, *others = nnx.split(model, frozen_filter(("visual",)), ...)
        visual, rest = Spread().alone((visual, *others))
        return cls(graphdef, visual, rest, processor, Packer(processor), prompts)

    def model(self) -> CaptionModel:
        """The policy as a whole."""
        whole: CaptionModel = nnx.merge(self.graphdef, self.visual, self.rest)
        return whole

    def having(self, *, visual: Params | None = None, rest: Params | None = None) -> Pupil:
        """The same with other parameters, where they are given."""
        return replace(self, visual=visual or self.visual, rest=rest or self.rest)

    def looked(self, scenery: Scenery, modality: Modality) -> Features:
        """What the vision tower makes of all pictures, on the host: NumPy arrays, a row for each."""
        encode = jax.jit(partial(_encoded, self.graphdef))
        rows = [
            jax.tree.map(np.asarray, encode(self.visual, self.rest, patches))
            for patches in (
                self.prompts[modality].whole(scenery.patches[first : first + _AT_ONCE])
                for first in range(0, len(scenery.scenes), _AT_ONCE)
            )
        ]
        joined: Features = jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
        return joined


def _encoded(graphdef: GraphDef, visual: Params, rest: Params, prompt: PromptBatch) -> Features:
    assert prompt.vision is not None
    model: CaptionModel = nnx.merge(graphdef, visual, rest)
    return model.encode_vision(prompt.vision)


def caption_logits(
    graphdef: GraphDef,
    visual: Params,
    rest: Params,
    prompt: PromptBatch,
    features: Features,
    tokens: np.ndarray,
) -> jax.Array:
    """What follows each token of captions, [B, G, T, V]. tokens: [B, G, T]."""
    model = nnx.merge(graphdef, visual, rest)
    return model.caption_hidden(prompt, features, jnp.asarray(tokens)) @ model.head()


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
