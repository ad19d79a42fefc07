"""The model laid out for decoding: one array per layer, parameters and caches alike.

Training scans over layers whose parameters are stacked. A scan hands each layer a slice, and a slice in front of a
matrix product is a copy: for a whole sequence it does not count, for one token it is as much traffic as the product
itself, and again for the caches. So generation has a layout of its own, made once per step
(``TwoTowerFamily.lay_out``): the layers apart, in the type of the products. Programs grow with the depth; there are few
of them.

Letters in shapes: as in ``vcap_jax.models.qwen3_vl.two_towers``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from vcap_jax.kernels import attention
from vcap_jax.kernels.attention.shared_prefix import continued
from vcap_jax.models import family
from vcap_jax.models.family import Params
from vcap_jax.models.layers import take_rows
from vcap_jax.models.qwen3_vl.caches import CaptionCache, PromptCache, empty_caches
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisualFeatures
from vcap_jax.models.qwen3_vl.text import Decoder, DecoderLayer, gather_features
from vcap_jax.models.qwen3_vl.two_towers import TwoTowerDecoder, TwoTowerModel, last_real, next_position

Array = jax.Array

GraphDef: TypeAlias = nnx.GraphDef[TwoTowerModel[Qwen3VLConfig, Decoder]]

_KeysAndValues = tuple[tuple[Array, ...], tuple[Array, ...]]

CaptionState: TypeAlias = family.CaptionState[CaptionCache, tuple[()]]
DecodeParams: TypeAlias = family.DecodeParams[tuple[Params, ...]]


@dataclass(frozen=True)
class _Embedded:
    """A batch of prompts as the layers take it.

    x: [B, P, D] tokens. cos, sin: [B, P, d / 2] their rotations. lengths: [B] int32 real tokens. features: of the
    visual tokens; visual_index: [B, P] int32, which of them a token is, -1 where none.
    """

    x: Array
    cos: Array
    sin: Array
    lengths: Array
    features: VisualFeatures | None
    visual_index: Array


class DecodeModel(TwoTowerDecoder[Qwen3VLConfig, Decoder]):
    """Prefill and decode over ``DecodeParams``; made inside a traced function.

    graphdef: of the ``Qwen3VL`` that the parameters were laid out from.
    """

    def __init__(self, graphdef: GraphDef, params: DecodeParams) -> None:
        # A module of the definition with one layer's parameters in the place of the stack, for every layer.
        models = [nnx.merge(graphdef, params.rest, layer) for layer in params.layers]
        self.layers: tuple[DecoderLayer, ...] = tuple(model.text.layers for model in models)
        super().__init__(models[0], self.layers)

    def prefill(
        self, prompt: PromptBatch, features: VisualFeatures | None, *, chunk: int
    ) -> tuple[Array, PromptCache]:
        """Hidden state [B, D] of each prompt's last real token, and the cache for its captions.

        chunk: prompts of more tokens are computed in chunks of that many, which bounds the memory of activations.
        """
        x, cos, sin = self._model.embed_prompt(prompt, features)
        lengths, visual_index = jnp.asarray(prompt.lengths), jnp.asarray(prompt.visual_index)
        embedded = _Embedded(x, cos, sin, lengths, features, visual_index)
        if x.shape[1] <= chunk:
            last, (keys, values) = self._whole(embedded)
        else:
            last, (keys, values) = self._in_chunks(embedded, chunk)
        # Keys with the tokens last, values with them second to last: what the products of decoding take.
        keys = tuple(jnp.transpose(k, (0, 2, 3, 1)) for k in keys)
        values = tuple(jnp.swapaxes(v, 1, 2) for v in values)
        cache = PromptCache(keys, values, lengths, next_position(prompt))
        return self._last_layer(last, embedded, cache), cache

    def _whole(self, prompt: _Embedded) -> tuple[Array, _KeysAndValues]:
        """What the last layer gets of each prompt's last real token, [B, D]; keys and values of all."""
        all_keys: list[Array] = []
        all_values: list[Array] = []

        def attend(q: Array, k: Array, v: Array) -> Array:
            all_keys.append(k)
            all_values.append(v)
            return attention.causal(q, k, v, self._model.kernel)

        x = prompt.x
        for index, layer in enumerate(self.layers[:-1]):
            x = layer(x, prompt.cos, prompt.sin, attend)
            x = _add_deepstack(x, index, prompt.features, prompt.visual_index)
        keys, values = _keys_and_values(self.layers[-1], x, prompt.cos, prompt.sin)
        return last_real(x, prompt.lengths), ((*all_keys, keys), (*all_values, values))

    def _in_chunks(self, prompt: _Embedded, chunk: int) -> tuple[Array, _KeysAndValues]:
        """The same, a chunk of tokens after the other."""
        config, (batch, length, _) = self.config.text, prompt.x.shape
        padding = -length % chunk
        x, cos, sin = (jnp.pad(a, ((0, 0), (0, padding), (0, 0))) for a in (prompt.x, prompt.cos, prompt.sin))
        visual_index = jnp.pad(prompt.visual_index, ((0, 0), (0, padding)), constant_values=-1)
        shape = (batch, length + padding, config.num_key_value_heads, config.head_dim)
        empty = tuple(self._by_heads(jnp.zeros(shape, x.dtype), 2) for _ in self.layers)

        def one(
            index: Array, carry: tuple[Array, tuple[Array, ...], tuple[Array, ...]]
        ) -> tuple[Array, tuple[Array, ...], tuple[Array, ...]]:
            last, keys, values = carry
            start = index * chunk

            def part(a: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(a, start, chunk, axis=1)

            hidden, cosine, sine, visual = part(x), part(cos), part(sin), part(visual_index)
            new_keys, new_values = [], []

            def keep(number: int, k: Array, v: Array) -> None:
                new_keys.append(jax.lax.dynamic_update_slice_in_dim(keys[number], k, start, axis=1))
                new_values.append(jax.lax.dynamic_update_slice_in_dim(values[number], v, start, axis=1))

            for number, layer in enumerate(self.layers[:-1]):

                def attend(q: Array, k: Array, v: Array, number: int = number) -> Array:
                    out = continued(q, k, v, keys[number], values[number], start, self._model.kernel)
                    keep(number, k, v)
                    return out

                hidden = layer(hidden, cosine, sine, attend)
                hidden = _add_deepstack(hidden, number, prompt.features, visual)
            keep(len(self.layers) - 1, *_keys_and_values(self.layers[-1], hidden, cosine, sine))
            place = jnp.maximum(prompt.lengths - 1, 0) - start
            here = jax.vmap(take_rows)(hidden, jnp.clip(place, 0, chunk - 1))
            last = jnp.where(((place >= 0) & (place < chunk))[:, None], here, last)
            return last, tuple(new_keys), tuple(new_values)

        first = (jnp.zeros((batch, x.shape[-1]), x.dtype), empty, empty)
        last, keys, values = jax.lax.fori_loop(0, (length + padding) // chunk, one, first)
        keys, values = (tuple(a[:, :length] for a in arrays) for arrays in (keys, values))
        return last, (keys, values)

    def _last_layer(self, x: Array, prompt: _Embedded, cache: PromptCache) -> Array:
        """The last layer and the final norm for the last real tokens [B, D], as if each were decoded behind the others.

        Nobody reads this layer's output for any other token, and a layer that computes it all is most of the prefill
        of a shallow model.
        """
        number, places = len(self.layers) - 1, jnp.maximum(prompt.lengths - 1, 0)
        keys, values = cache.keys[number], cache.values[number]

        def attend(q: Array, k: Array, v: Array) -> Array:
            before = attention.Seen.first(places, keys.shape[-1])
            k, v = (attention.rows_of(a, self._parts) for a in (k, v))
            one = jnp.ones((q.shape[0], 1), jnp.int32)
            itself = attention.Seen(one.astype(bool), one, jnp.zeros_like(one), 0)
            own = attention.Cached(k[..., None], v[:, None], itself, self._parts)
            return self._model.kernel.decode(q, attention.Cached(keys, values, before), own)

        cos, sin = (last_real(a, prompt.lengths)[:, None] for a in (prompt.cos, prompt.sin))
        x = self.layers[number](x[:, None], cos, sin, attend)
        visual = jnp.take_along_axis(prompt.visual_index, places[:, None], axis=1)
        return self._model.text.norm(_add_deepstack(x, number, prompt.features, visual))[:, 0]

    def empty(
        self, *, groups: int, prompt_tokens: int, captions: int, caption_tokens: int
    ) -> tuple[PromptCache, CaptionState]:
        """Caches of zeros."""
        prompt, columns = empty_caches(
            self.config.text,
            len(self.layers),
            self.dtype,
            groups=groups,
            prompt_tokens=prompt_tokens,
            captions=captions,
            caption_tokens=caption_tokens,
        )
        return prompt, family.CaptionState(columns, (), self._parts)

    def begin(self, prompt: PromptCache, captions: int) -> tuple[()]:
        """Nothing: a caption is its tokens' keys and values."""
        del prompt, captions
        return ()

    def tensor_axes(self, prompt: PromptCache) -> PromptCache[int]:
        """Keys and values are cut by head, where there are as many as devices."""
        heads = (1 if self._parts > 1 else -1,)
        return PromptCache(heads * len(prompt.keys), heads * len(prompt.values), -1, -1)

    def decode(
        self,
        tokens: Array,
        rotation: tuple[Array, Array],
        prompt_seen: attention.Seen,
        column: Array,
        caption_seen: attention.Seen,
        prompt: PromptCache,
        captions: CaptionState,
    ) -> tuple[Array, CaptionState]:
        """Feeds one token of every caption.

        tokens: [B, G] int32. rotation: cosine and sine [B, d / 2] of the tokens' place, see ``ahead``. column: int32
        scalar, where in the caption cache this token's keys and values go. prompt_seen, caption_seen: the tokens that
        are seen; ``column`` is among them.
        Returns hidden states [B, G, D] after the final norm, which predict the next token; the cache with ``column``.
        """
        cos, sin = (x[:, None] for x in rotation)
        x = self._model.text.embed(tokens)
        keys, values = list(captions.columns.keys), list(captions.columns.values)
        for index, layer in enumerate(self.layers):

            def attend(q: Array, k: Array, v: Array, index: int = index) -> Array:
                new_keys, new_values = (attention.rows_of(a, captions.parts) for a in (k, v))
                keys[index] = jax.lax.dynamic_update_slice_in_dim(
                    keys[index], new_keys[..., None], column, axis=2
                )
                values[index] = jax.lax.dynamic_update_slice_in_dim(
                    values[index], new_values[:, None], column, axis=1
                )
                own = attention.Cached(keys[index], values[index], caption_seen, captions.parts)
                shared = attention.Cached(prompt.keys[index], prompt.values[index], prompt_seen)
                return self._model.kernel.decode(q, shared, own)

            x = layer(x, cos, sin, attend)
        columns = CaptionCache(tuple(keys), tuple(values))
        return self._model.text.norm(x), replace(captions, columns=columns)


def _add_deepstack(x: Array, layer: int, features: VisualFeatures | None, visual_index: Array) -> Array:
    if features is None or layer >= features.deepstack.shape[1]:
        return x
    return x + gather_features(features.deepstack[:, layer], visual_index).astype(x.dtype)


def _keys_and_values(layer: DecoderLayer, x: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """A layer's, [B, S, K, d] each. XLA leaves out what nobody reads of the layer, but for the queries: their
    projection is one product with those of keys and values."""
    found: list[tuple[Array, Array]] = []

    def attend(q: Array, k: Array, v: Array) -> Array:
        found.append((k, v))
        return q

    layer.attention(layer.input_norm(x), cos, sin, attend)
    return found[0]
