"""A captioning policy of this vision tower and a decoder, whatever the decoder's layers are.

The unit is the group: one visual prompt and its G captions. The prompt's visual features, and what its captions need
of it, are computed once whatever G is, in rollout (``decoding``) and in training (``caption_hidden``).

Letters in shapes: B groups, P prompt tokens (right-padded), G captions, T caption tokens, V visual tokens
of a prompt, D width, N layers, K key heads, d head size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vcap_jax.kernels import attention
from vcap_jax.kernels.matmul import einsum_float32
from vcap_jax.kernels.native import skinny_matmul as few_rows
from vcap_jax.models.family import ModelFamily
from vcap_jax.models.layers import Linear, normal_param, take_rows
from vcap_jax.models.qwen3_vl import rope
from vcap_jax.models.qwen3_vl.caches import CaptionCache, PromptCache
from vcap_jax.models.qwen3_vl.config import TwoTowers
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs, VisualFeatures
from vcap_jax.models.qwen3_vl.text import Attend, Embedding, gather_features
from vcap_jax.models.qwen3_vl.vision import VisionTower
from vcap_jax.models.weight_map import WeightMap
from vcap_jax.parallel.group_sharding import cut_by_tensor

Array = jax.Array


def next_position(prompt: PromptBatch) -> Array:
    """[B] int32: the M-RoPE position of the first token after each prompt (0 after an empty one)."""
    real = jnp.arange(prompt.tokens.shape[1]) < jnp.asarray(prompt.lengths)[:, None]
    return jnp.max(jnp.where(real[:, None, :], jnp.asarray(prompt.positions), -1), axis=(1, 2)) + 1


def last_real(hidden: Array, lengths: Array) -> Array:
    """The row of each prompt's last real token: [B, P, D], [B] -> [B, D] (row 0 of an empty prompt)."""
    return jax.vmap(take_rows)(hidden, jnp.maximum(jnp.asarray(lengths) - 1, 0))


ConfigT = TypeVar("ConfigT", bound=TwoTowers)
TextT = TypeVar("TextT", bound=Embedding)


class Tokens(NamedTuple):
    """What the layers are given: a prompt, and perhaps its captions behind it, [prompt | c1 | ... | cG].

    x: [B, S, D] embedded. cos, sin: float32 [B, S, rotary_dim / 2]. captions: G; 0 where the prompt stands alone.
    """

    x: Array
    cos: Array
    sin: Array
    captions: int = 0


class TwoTowerModel(nnx.Module, Generic[ConfigT, TextT]):
    """The model; parameters are ``nnx.Param`` only, vision tower and mergers under ``visual``, the decoder under
    ``text``. decoder: its class."""

    decoder: type[TextT]

    def __init__(
        self,
        config: ConfigT,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.bfloat16,
        param_dtype: DTypeLike = jnp.float32,
        remat: str = "none",
        kernel: attention.Kernel = attention.CHUNKED,
    ) -> None:
        """config: the family's own.

        rngs: the ``params`` stream draws the initial weights. dtype: type of the computation; norms, rotary positions
        and softmax are float32 in any case. param_dtype: type the parameters are kept in, cast to ``dtype`` on use.
        remat: what the backward pass of a layer computes again, see ``vcap_jax.models.remat``. kernel: computes the
        attention of whole sequences, see ``attention.choose``.
        """
        self.config, self.dtype, self.kernel = config, jnp.dtype(dtype), kernel
        self.visual = VisionTower(
            config.vision, rngs=rngs, dtype=self.dtype, param_dtype=param_dtype, remat=remat, kernel=kernel
        )
        self.text = self.decoder(
            config.text, rngs=rngs, dtype=self.dtype, param_dtype=param_dtype, remat=remat
        )
        if not config.tie_word_embeddings:
            table = (config.text.vocab_size, config.text.hidden_size)
            self.lm_head = normal_param(rngs, table, config.text.initializer_range, param_dtype)

    @classmethod
    def abstract(
        cls,
        config: ConfigT,
        *,
        dtype: DTypeLike = jnp.bfloat16,
        param_dtype: DTypeLike = jnp.float32,
        remat: str = "none",
        kernel: attention.Kernel = attention.CHUNKED,
    ) -> Self:
        """The model with shapes in place of arrays; arguments as of the model."""
        return nnx.eval_shape(
            lambda: cls(
                config, rngs=nnx.Rngs(0), dtype=dtype, param_dtype=param_dtype, remat=remat, kernel=kernel
            )
        )

    @classmethod
    @abstractmethod
    def family(cls) -> ModelFamily:
        """Whose model this is."""

    @property
    @abstractmethod
    def weight_map(self) -> WeightMap:
        """Its public names."""

    @abstractmethod
    def layers(
        self, tokens: Tokens, attend: Attend, prompt: PromptBatch, features: VisualFeatures | None
    ) -> Array:
        """All layers of the decoder: hidden states [B, S, D] after the final norm."""

    def encode_vision(self, vision: VisionInputs) -> VisualFeatures:
        """Visual features of a batch of prompts; see ``VisualFeatures``."""
        return self.visual(vision)

    def hidden(self, prompt: PromptBatch, features: VisualFeatures | None) -> Array:
        """Hidden states [B, P, D] after the final norm, plain causal."""

        def attend(q: Array, k: Array, v: Array) -> Array:
            return attention.causal(q, k, v, self.kernel)

        return self.layers(Tokens(*self.embed_prompt(prompt, features)), attend, prompt, features)

    def caption_hidden(self, prompt: PromptBatch, features: VisualFeatures | None, captions: Array) -> Array:
        """The training forward: hidden states that predict the captions, each prompt computed once. Equal to running
        ``hidden`` on every prompt joined with each of its captions.

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

        hidden = self.layers(Tokens(x, cos, sin, group), attend, prompt, features)
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
        cos, sin = rope.mrope(positions, config.rotary_dim, config.rope_theta, config.mrope_section)
        return x, cos, sin

    def rotations(self, positions: Array) -> tuple[Array, Array]:
        """Cosines and sines of caption tokens: [...] -> two [..., rotary_dim / 2]."""
        return rope.text_rope(positions, self.config.text.rotary_dim, self.config.text.rope_theta)


class TwoTowerDecoder(Generic[ConfigT, TextT]):
    """What the decoders of such models have in common.

    Where attention is in C++ (``native``), so are products of few rows, if they may be (``native.few_rows``).

    model: with the parameters for decoding. layers: of its decoder, in their order.
    """

    def __init__(self, model: TwoTowerModel[ConfigT, TextT], layers: Iterable[nnx.Module]) -> None:
        self._model, self.config, self.dtype = model, model.config, model.dtype
        if model.kernel.name == "native" and few_rows.usable(model.dtype):
            for layer in layers:
                for _, module in nnx.iter_modules(layer):
                    if isinstance(module, Linear):
                        module.product = few_rows.product

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.config.text.vocab_size

    @property
    def _parts(self) -> int:
        """In how many parts the devices around cut the key heads."""
        return attention.head_parts(self.config.text.num_key_value_heads)

    def _by_heads(self, x: Array, axis: int) -> Array:
        """``x`` with the key heads on ``axis``, cut as they are."""
        return cut_by_tensor(x, axis) if self._parts > 1 else x

    def ahead(self, steps: Array, prompt: PromptCache) -> tuple[tuple[Array, Array], attention.Seen]:
        """The rotations of the tokens at ``steps`` [B, n], and which of the prompts' tokens are seen. Inside of a loop
        XLA's CPU backend would compute rotations again for every head and layer."""
        seen = attention.Seen.first(prompt.lengths, prompt.keys[0].shape[-1])
        return self._model.rotations(prompt.next_position.reshape(-1, 1) + steps), seen

    def token_axes(self, columns: CaptionCache) -> CaptionCache[int]:
        """Which axis of each array is the captions' tokens."""
        return CaptionCache((2,) * len(columns.keys), (1,) * len(columns.values))

    def logits(self, hidden: Array) -> Array:
        """[..., D] -> float32 [..., vocab_size]."""
        return self._model.logits(hidden)
