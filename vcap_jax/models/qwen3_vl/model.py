"""Qwen3-VL as a captioning policy: the public surface of this room.

What does not depend on the decoder's layers, and the letters in shapes, are in ``vcap_jax.models.qwen3_vl.two_towers``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from vcap_jax.models.family import ModelFamily
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisualFeatures
from vcap_jax.models.qwen3_vl.text import Attend, Decoder, DeepStack
from vcap_jax.models.qwen3_vl.two_towers import Tokens, TwoTowerModel
from vcap_jax.models.weight_map import WeightMap

Array = jax.Array


class Qwen3VL(TwoTowerModel[Qwen3VLConfig, Decoder]):
    """The model. config: see ``Qwen3VLConfig.from_pretrained``; the rest: see ``TwoTowerModel``."""

    decoder = Decoder

    @classmethod
    def family(cls) -> ModelFamily:
        """See ``TwoTowerModel``."""
        from vcap_jax.models.qwen3_vl.family import qwen3_vl  # which needs this class

        return qwen3_vl()

    @property
    def weight_map(self) -> WeightMap:
        """See ``TwoTowerModel``."""
        from vcap_jax.models.qwen3_vl.weight_table import weight_map  # which needs this class

        return weight_map(self.config)

    def layers(
        self, tokens: Tokens, attend: Attend, prompt: PromptBatch, features: VisualFeatures | None
    ) -> Array:
        """See ``TwoTowerModel``; the first layers add DeepStack's features."""
        deepstack = (
            None if features is None else DeepStack(features.deepstack, jnp.asarray(prompt.visual_index))
        )
        return self.text(tokens.x, tokens.cos, tokens.sin, attend, deepstack)
