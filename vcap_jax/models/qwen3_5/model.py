"""Qwen3.5 as a captioning policy: the public surface of this room.

A prompt's visual features, its keys and values, and its memories are computed once whatever the number of its
captions, in rollout (``vcap_jax.models.qwen3_5.decoding``) and in training (``caption_hidden``).

Letters in shapes: as in ``vcap_jax.models.qwen3_vl.model``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vcap_jax.kernels import attention
from vcap_jax.kernels.matmul import einsum_float32
from vcap_jax.models.family import ModelFamily
from vcap_jax.models.layers import normal_param
from vcap_jax.models.qwen3_5.config import Qwen35Config
from vcap_jax.models.qwen3_5.text import Decoder, DeltaNet, Entered, Memory
from vcap_jax.models.qwen3_vl import rope
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs, VisualFeatures
from vcap_jax.models.qwen3_vl.model import last_real, next_position
from vcap_jax.models.qwen3_vl.text import gather_features
from vcap_jax.models.qwen3_vl.vision import VisionTower
from vcap_jax.models.weight_map import WeightMap

Array = jax.Array


class Qwen35(nnx.Module):
    """The model; parameters are ``nnx.Param`` only, vision tower and merger under ``visual``.

    config: see ``Qwen35Config.from_pretrained``. Other arguments: as those of ``Qwen3VL``.
    """

    def __init__(
        self,
        config: Qwen35Config,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.bfloat16,
        param_dtype: DTypeLike = jnp.float32,
        remat: str = "none",
        kernel: attention.Kernel = attention.CHUNKED,
    ) -> None:
        self.config, self.dtype, self.kernel = config, jnp.dtype(dtype), kernel
        self.visual = VisionTower(
            config.vision, rngs=rngs, dtype=self.dtype, param_dtype=param_dtype, remat=remat, kernel=kernel
        )
        self.text = Decoder(config.text, rngs=rngs, dtype=self.dtype, param_dtype=param_dtype, remat=remat)
        if not config.tie_word_embeddings:
            table = (config.text.vocab_size, config.text.hidden_size)
            self.lm_head = normal_param(rngs, table, config.text.initializer_range, param_dtype)

    @classmethod
    def family(cls) -> ModelFamily:
        """Whose model this is."""
        from vcap_jax.models.qwen3_5.family import qwen3_5  # which needs this class

        return qwen3_5()

    @property
    def weight_map(self) -> WeightMap:
        """Its public names."""
        from vcap_jax.models.qwen3_5.weight_table import weight_map  # which needs this class

        return weight_map(self.config)

    def encode_vision(self, vision: VisionInputs) -> VisualFeatures:
        """Visual features of a batch of prompts; see ``VisualFeatures``."""
        return self.visual(vision)

    def hidden(self, prompt: PromptBatch, features: VisualFeatures | None) -> Array:
        """Hidden states [B, P, D] after the final norm, plain causal."""
        x, cos, sin = self.embed_prompt(prompt, features)
        lengths = jnp.asarray(prompt.lengths)

        def recur(layer: DeltaNet, entered: Entered) -> Array:
            nothing = layer.nothing(len(x), dtype=x.dtype)
            return layer.sequence(entered, nothing, lengths)[0]

        def attend(q: Array, k: Array, v: Array) -> Array:
            return attention.causal(q, k, v, self.kernel)

        return self.text(x, cos, sin, attend, recur)

    def caption_hidden(self, prompt: PromptBatch, features: VisualFeatures | None, captions: Array) -> Array:
        """The training forward: hidden states that predict the captions, each prompt computed once.

        Equal to running ``hidden`` on every prompt joined with each of its captions. The gradient goes through the
        memories that a prompt leaves to its captions.

        captions: [B, G, T] int32, right-padded with any token.
        Returns [B, G, T, D]; entry t predicts caption token t (entry 0 is the prompt's last real token).
        """
        captions = jnp.asarray(captions)
        batch, group, tokens = captions.shape
        prompt_tokens = prompt.tokens.shape[1]
        x, cos, sin = self.embed_prompt(prompt, features)
        position = next_position(prompt)[:, None, None] + jnp.arange(tokens)
        position = jnp.broadcast_to(position, captions.shape).reshape(batch, -1)
        caption_cos, caption_sin = self.rotations(position)
        x = jnp.concatenate([x, self.text.embed(captions.reshape(batch, -1))], axis=1)
        cos = jnp.concatenate([cos, caption_cos], axis=1)
        sin = jnp.concatenate([sin, caption_sin], axis=1)
        lengths = jnp.asarray(prompt.lengths)

        def attend(q: Array, k: Array, v: Array) -> Array:
            return attention.grouped(q, k, v, lengths, prompt_tokens, group, self.kernel)

        def apart(a: Array) -> Array:
            """Captions as sequences of their own: [B, P + G T, ...] -> [B G, T, ...]."""
            return a[:, prompt_tokens:].reshape(batch * group, tokens, *a.shape[2:])

        def recur(layer: DeltaNet, entered: Entered) -> Array:
            of_prompt = Entered(*(a[:, :prompt_tokens] for a in entered))
            nothing = layer.nothing(batch, dtype=x.dtype)
            first, memory = layer.sequence(of_prompt, nothing, lengths)
            memories: Memory = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), forked(memory, group))
            own = layer.sequence(Entered(*map(apart, entered)), memories)[0]
            return jnp.concatenate([first, own.reshape(batch, -1, *own.shape[2:])], axis=1)

        hidden = self.text(x, cos, sin, attend, recur)
        start = last_real(hidden[:, :prompt_tokens], lengths)[:, None, None]
        start = jnp.broadcast_to(start, (batch, group, 1, hidden.shape[-1]))
        rest = hidden[:, prompt_tokens:].reshape(batch, group, tokens, -1)[:, :, :-1]
        return jnp.concatenate([start, rest], axis=2)

    def head(self) -> Array:
        """The output matrix [D, vocab_size], in the parameters' type: the transposed embedding if tied."""
        table = self.text.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return table[...].T

    def logits(self, hidden: Array) -> Array:
        """[..., D] -> float32 [..., vocab_size]."""
        return einsum_float32("...d,dv->...v", hidden, self.head().astype(hidden.dtype))

    def embed_prompt(
        self, prompt: PromptBatch, features: VisualFeatures | None
    ) -> tuple[Array, Array, Array]:
        """Embeddings [B, P, D] with visual features in their places, and cosines and sines of positions."""
        config = self.config.text
        x = self.text.embed(jnp.asarray(prompt.tokens))
        if features is not None:
            visual_index = jnp.asarray(prompt.visual_index)
            visual = gather_features(features.embeddings, visual_index).astype(x.dtype)
            x = jnp.where(visual_index[..., None] >= 0, visual, x)
        positions = jnp.asarray(prompt.positions)
        cos, sin = rope.mrope(positions, config.rotary_dim, config.rope_theta, config.mrope_section)
        return x, cos, sin

    def rotations(self, positions: Array) -> tuple[Array, Array]:
        """Cosines and sines of caption tokens: [...] -> two [..., rotary_dim / 2]."""
        return rope.text_rope(positions, self.config.text.rotary_dim, self.config.text.rope_theta)


def forked(memory: Memory, captions: int) -> Memory:
    """A prompt's memory for each of its captions: [B, ...] -> [B, captions, ...]."""
    copied: Memory = jax.tree.map(
        lambda a: jnp.broadcast_to(a[:, None], (len(a), captions, *a.shape[1:])), memory
    )
    return copied
