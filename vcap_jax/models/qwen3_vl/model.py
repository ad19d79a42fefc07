"""Qwen3-VL as a captioning policy: the public surface of this room.

The unit is the group: one visual prompt and its G captions. The prompt's visual features, and its keys and
values, are computed once whatever G is, in rollout (``vcap_jax.models.qwen3_vl.decoding``) and in training
(``caption_hidden``).

Letters in shapes: B groups, P prompt tokens (right-padded), G captions, T caption tokens, V visual tokens
of a prompt, D width, N layers, K key heads, d head size.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vcap_jax.kernels import attention
from vcap_jax.kernels.matmul import einsum_float32
from vcap_jax.models.family import ModelFamily
from vcap_jax.models.layers import normal_param, take_rows
from vcap_jax.models.qwen3_vl import rope
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs, VisualFeatures
from vcap_jax.models.qwen3_vl.text import Decoder, DeepStack, gather_features
from vcap_jax.models.qwen3_vl.vision import VisionTower
from vcap_jax.models.weight_map import WeightMap

Array = jax.Array


def next_position(prompt: PromptBatch) -> Array:
    """[B] int32: the M-RoPE position of the first token after each prompt (0 after an empty one)."""
    real = jnp.arange(prompt.tokens.shape[1]) < jnp.asarray(prompt.lengths)[:, None]
    return jnp.max(jnp.where(real[:, None, :], jnp.asarray(prompt.positions), -1), axis=(1, 2)) + 1


def last_real(hidden: Array, lengths: Array) -> Array:
    """The row of each prompt's last real token: [B, P, D], [B] -> [B, D] (row 0 of an empty prompt)."""
    return jax.vmap(take_rows)(hidden, jnp.maximum(jnp.asarray(lengths) - 1, 0))


class Qwen3VL(nnx.Module):
    """The model; parameters are ``nnx.Param`` only, vision tower and mergers under ``visual``.

    Args:
        config: see ``Qwen3VLConfig.from_pretrained``.
        rngs: the ``params`` stream draws the initial weights.
        dtype: type of the computation; norms, rotary positions and softmax are float32 in any case.
        param_dtype: type the parameters are kept in, cast to ``dtype`` on use.
        remat: what the backward pass of a layer computes again, see ``vcap_jax.models.remat``.
        kernel: computes the attention of whole sequences, see ``attention.choose``.
    """

    def __init__(
        self,
        config: Qwen3VLConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.bfloat16,
        param_dtype: DTypeLike = jnp.float32,
        remat: str = "none",
        kernel: attention.Kernel = attention.CHUNKED,
    ) -> None:
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.kernel = kernel
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
        from vcap_jax.models.qwen3_vl.family import qwen3_vl  # which needs this class

        return qwen3_vl()

    @property
    def weight_map(self) -> WeightMap:
        """Its public names."""
        from vcap_jax.models.qwen3_vl.weight_table import weight_map  # which needs this class

        return weight_map(self.config)

    def encode_vision(self, vision: VisionInputs) -> VisualFeatures:
        """Visual features of a batch of prompts; see ``VisualFeatures``."""
        return self.visual(vision)

    def hidden(self, prompt: PromptBatch, features: VisualFeatures | None) -> Array:
        """Hidden states [B, P, D] after the final norm, plain causal."""
        x, cos, sin = self.embed_prompt(prompt, features)
        return self.text(x, cos, sin, self._causal, _deepstack(prompt, features))

    def caption_hidden(self, prompt: PromptBatch, features: VisualFeatures | None, captions: Array) -> Array:
        """The training forward: hidden states that predict the captions, each prompt computed once.

        Equal to running ``hidden`` on every prompt joined with each of its captions.

        Args:
            captions: [B, G, T] int32, right-padded with any token.

        Returns:
            [B, G, T, D]; entry t predicts caption token t (entry 0 is the prompt's last real token).
        """
        config = self.config.text
        captions = jnp.asarray(captions)
        batch, group, tokens = captions.shape
        prompt_tokens = prompt.tokens.shape[1]
        x, cos, sin = self.embed_prompt(prompt, features)
        position = next_position(prompt)[:, None, None] + jnp.arange(tokens)
        position = jnp.broadcast_to(position, captions.shape).reshape(batch, -1)
        caption_cos, caption_sin = rope.text_rope(position, config.head_dim, config.rope_theta)
        x = jnp.concatenate([x, self.text.embed(captions.reshape(batch, -1))], axis=1)
        cos = jnp.concatenate([cos, caption_cos], axis=1)
        sin = jnp.concatenate([sin, caption_sin], axis=1)
        lengths = jnp.asarray(prompt.lengths)

        def attend(q: Array, k: Array, v: Array) -> Array:
            return attention.grouped(q, k, v, lengths, prompt_tokens, group, self.kernel)

        hidden = self.text(x, cos, sin, attend, _deepstack(prompt, features))
        first = last_real(hidden[:, :prompt_tokens], lengths)[:, None, None]
        first = jnp.broadcast_to(first, (batch, group, 1, hidden.shape[-1]))
        rest = hidden[:, prompt_tokens:].reshape(batch, group, tokens, -1)[:, :, :-1]
        return jnp.concatenate([first, rest], axis=2)

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
        cos, sin = rope.mrope(positions, config.head_dim, config.rope_theta, config.mrope_section)
        return x, cos, sin

    def _causal(self, q: Array, k: Array, v: Array) -> Array:
        return attention.causal(q, k, v, self.kernel)


def _deepstack(prompt: PromptBatch, features: VisualFeatures | None) -> DeepStack | None:
    return None if features is None else DeepStack(features.deepstack, jnp.asarray(prompt.visual_index))
