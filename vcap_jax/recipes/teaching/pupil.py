"""The policy while it is taught, and what it is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.models.family import CaptionModel, Features, GraphDef, Params, Processor, PromptBatch
from vcap_jax.models.policy import frozen_filter
from vcap_jax.recipes.teaching.packing import Packer
from vcap_jax.recipes.teaching.scenery import Scenery
from vcap_jax.recipes.teaching.spread import Spread
from vcap_jax.world.scenes import Modality
from vcap_jax.world.tiny_policy import Prompts

_AT_ONCE = 64
"""Pictures that the tower looks at in one call."""


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
