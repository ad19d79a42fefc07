"""Qwen3.5 as a captioning policy: the public surface of this room.

What does not depend on the decoder's layers, and the letters in shapes, are in ``vcap_jax.models.qwen3_vl.two_towers``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.models.family import ModelFamily
from vcap_jax.models.qwen3_5.config import Qwen35Config
from vcap_jax.models.qwen3_5.text import Decoder, DeltaNet, Entered, Memory
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisualFeatures
from vcap_jax.models.qwen3_vl.text import Attend
from vcap_jax.models.qwen3_vl.two_towers import Tokens, TwoTowerModel
from vcap_jax.models.weight_map import WeightMap

Array = jax.Array


class Qwen35(TwoTowerModel[Qwen35Config, Decoder]):
    """The model. config: see ``Qwen35Config.from_pretrained``; the rest: see ``TwoTowerModel``."""

    decoder = Decoder

    @classmethod
    def family(cls) -> ModelFamily:
        """See ``TwoTowerModel``."""
        from vcap_jax.models.qwen3_5.family import qwen3_5  # which needs this class

        return qwen3_5()

    @property
    def weight_map(self) -> WeightMap:
        """See ``TwoTowerModel``."""
        from vcap_jax.models.qwen3_5.weight_table import weight_map  # which needs this class

        return weight_map(self.config)

    def layers(
        self, tokens: Tokens, attend: Attend, prompt: PromptBatch, features: VisualFeatures | None
    ) -> Array:
        """See ``TwoTowerModel``. A caption goes on from its prompt's memories, and the gradient through them."""
        del features  # they stand in the places of tokens, and nowhere else
        width, group = prompt.tokens.shape[1], tokens.captions
        batch, length, _ = tokens.x.shape
        lengths = jnp.asarray(prompt.lengths)

        def apart(a: Array) -> Array:
            """Captions as sequences of their own: [B, P + G T, ...] -> [B G, T, ...]."""
            return a[:, width:].reshape(batch * group, (length - width) // group, *a.shape[2:])

        def recur(layer: DeltaNet, entered: Entered) -> Array:
            of_prompt = Entered(*(a[:, :width] for a in entered))
            first, memory = layer.sequence(of_prompt, layer.nothing(batch, dtype=tokens.x.dtype), lengths)
            if not group:
                return first
            memories: Memory = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), forked(memory, group))
            own = layer.sequence(Entered(*map(apart, entered)), memories)[0]
            return jnp.concatenate([first, own.reshape(batch, -1, *own.shape[2:])], axis=1)

        return self.text(tokens.x, tokens.cos, tokens.sin, attend, recur)


def forked(memory: Memory, captions: int) -> Memory:
    """A prompt's memory for each of its captions: [B, ...] -> [B, captions, ...]."""
    copied: Memory = jax.tree.map(
        lambda a: jnp.broadcast_to(a[:, None], (len(a), captions, *a.shape[1:])), memory
    )
    return copied
