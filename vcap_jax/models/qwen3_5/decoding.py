"""The model laid out for decoding: one array per layer, parameters and states alike.

As for Qwen3-VL (``vcap_jax.models.qwen3_vl.decoding`` says why), but that three layers of four have no keys and values:
a caption carries a memory of each, which every token replaces.

Letters in shapes: as in ``vcap_jax.models.qwen3_vl.two_towers``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from typing_extensions import TypeVar

from vcap_jax.kernels import attention
from vcap_jax.kernels.attention.shared_prefix import continued
from vcap_jax.models import family
from vcap_jax.models.family import Params
from vcap_jax.models.layers import take_rows
from vcap_jax.models.qwen3_5.config import Qwen35Config
from vcap_jax.models.qwen3_5.model import forked
from vcap_jax.models.qwen3_5.text import AttentionLayer, Decoder, DeltaLayer, DeltaNet, Entered, Memory
from vcap_jax.models.qwen3_vl.caches import CaptionCache, PromptCache, empty_caches
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisualFeatures
from vcap_jax.models.qwen3_vl.two_towers import TwoTowerDecoder, TwoTowerModel, next_position

Array = jax.Array

Leaf = TypeVar("Leaf", default=Array)
Memories = TypeVar("Memories", default=tuple[Memory, ...])
GraphDef: TypeAlias = nnx.GraphDef[TwoTowerModel[Qwen35Config, Decoder]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PromptState(PromptCache[Leaf], Generic[Leaf, Memories]):
    """Keys and values of the layers of attention. memories: behind the last real token, of each gated delta rule,
    [B, ...]."""

    memories: Memories


CaptionState: TypeAlias = family.CaptionState[CaptionCache, tuple[Memory, ...]]
DecodeParams: TypeAlias = family.DecodeParams[tuple[Params, ...]]


class DecodeModel(TwoTowerDecoder[Qwen35Config, Decoder]):
    """Prefill and decode over ``DecodeParams``; made inside a traced function.

    graphdef: of the ``Qwen35`` that the parameters were laid out from.
    """

    def __init__(self, graphdef: GraphDef, params: DecodeParams) -> None:
        # A module of the definition with one layer's parameters in the place of each stack, for every layer.
        interval = nnx.merge(graphdef, params.rest, *params.layers[-2:]).config.text.full_attention_interval
        self.layers: list[DeltaLayer | AttentionLayer] = []
        for number, own in enumerate(params.layers):
            attends = (number + 1) % interval == 0
            other = params.layers[0 if attends else interval - 1]
            model = nnx.merge(graphdef, params.rest, own, other)
            self.layers.append(model.text.attention_layers if attends else model.text.delta_layers)
        super().__init__(model, self.layers)

    def prefill(
        self, prompt: PromptBatch, features: VisualFeatures | None, *, chunk: int
    ) -> tuple[Array, PromptState]:
        """Hidden state [B, D] of each prompt's last real token, and what its captions need of it.

        chunk: prompts of more tokens are computed in chunks of that many, which bounds the memory of activations.
        """
        x, cos, sin = self._model.embed_prompt(prompt, features)
        lengths = jnp.asarray(prompt.lengths)
        batch, length, width = x.shape
        stretch = min(chunk, length)
        padding = -length % stretch
        x, cos, sin = (jnp.pad(a, ((0, 0), (0, padding), (0, 0))) for a in (x, cos, sin))
        config = self.config.text
        shape = (batch, length + padding, config.num_key_value_heads, config.head_dim)
        empty = tuple(self._by_heads(jnp.zeros(shape, x.dtype), 2) for _ in self._of(AttentionLayer))
        nothing = tuple(layer.delta.nothing(batch, dtype=x.dtype) for layer in self._of(DeltaLayer))
        carry = (jnp.zeros((batch, width), x.dtype), empty, empty, nothing)

        def one(index: Array, carry: _Carry) -> _Carry:
            start = index * stretch
            part = [jax.lax.dynamic_slice_in_dim(a, start, stretch, axis=1) for a in (x, cos, sin)]
            return self._stretch((part[0], part[1], part[2]), start, lengths, carry)

        if padding + length == stretch:
            carry = self._stretch((x, cos, sin), None, lengths, carry)
        else:
            carry = jax.lax.fori_loop(0, (length + padding) // stretch, one, carry)
        last, keys, values, memories = carry
        # Keys with the tokens last, values with them second to last: what the products of decoding take.
        keys = tuple(jnp.transpose(k[:, :length], (0, 2, 3, 1)) for k in keys)
        values = tuple(jnp.swapaxes(v[:, :length], 1, 2) for v in values)
        state = PromptState(keys, values, lengths, next_position(prompt), memories)
        return self._model.text.norm(last), state

    def _stretch(
        self, tokens: tuple[Array, Array, Array], start: Array | None, lengths: Array, carry: _Carry
    ) -> _Carry:
        """All layers over a stretch of the prompts: hidden states [B, S, D], cosines and sines.

        start: of the stretch; None: it is the whole prompt. carry: of the stretches before, see ``_Carry``.
        """
        hidden, cos, sin = tokens
        last, keys, values, memories = carry[0], list(carry[1]), list(carry[2]), list(carry[3])
        begin = jnp.zeros((), jnp.int32) if start is None else start
        length = hidden.shape[1]
        counts = jnp.clip(lengths - begin, 0, length)
        deltas = attentions = 0
        for layer in self.layers:
            if isinstance(layer, DeltaLayer):

                def recur(net: DeltaNet, entered: Entered, at: int = deltas) -> Array:
                    out, memories[at] = net.sequence(entered, memories[at], counts)
                    return out

                hidden, deltas = layer(hidden, recur), deltas + 1
                continue

            def attend(q: Array, k: Array, v: Array, at: int = attentions) -> Array:
                kernel = self._model.kernel
                if start is None:
                    keys[at], values[at] = k, v
                    return attention.causal(q, k, v, kernel)
                out = continued(q, k, v, keys[at], values[at], start, kernel)
                keys[at] = jax.lax.dynamic_update_slice_in_dim(keys[at], k, start, axis=1)
                values[at] = jax.lax.dynamic_update_slice_in_dim(values[at], v, start, axis=1)
                return out

            hidden, attentions = layer(hidden, cos, sin, attend), attentions + 1
        place = jnp.maximum(lengths - 1, 0) - begin
        here = jax.vmap(take_rows)(hidden, jnp.clip(place, 0, length - 1))
        last = jnp.where(((place >= 0) & (place < length))[:, None], here, last)
        return last, tuple(keys), tuple(values), tuple(memories)

    def _of(self, kind: type[_Layer]) -> list[_Layer]:
        return [layer for layer in self.layers if isinstance(layer, kind)]

    def empty(
        self, *, groups: int, prompt_tokens: int, captions: int, caption_tokens: int
    ) -> tuple[PromptState, CaptionState]:
        """States of zeros."""

        def memories(*lead: int) -> tuple[Memory, ...]:
            return tuple(layer.delta.nothing(*lead, dtype=self.dtype) for layer in self._of(DeltaLayer))

        cache, columns = empty_caches(
            self.config.text,
            len(self._of(AttentionLayer)),
            self.dtype,
            groups=groups,
            prompt_tokens=prompt_tokens,
            captions=captions,
            caption_tokens=caption_tokens,
        )
        prompt = PromptState(**vars(cache), memories=memories(groups))
        return prompt, family.CaptionState(columns, memories(groups, captions), self._parts)

    def begin(self, prompt: PromptState, captions: int) -> tuple[Memory, ...]:
        """The prompts' memories, for each caption."""
        return tuple(forked(memory, captions) for memory in prompt.memories)

    def tensor_axes(self, prompt: PromptState) -> PromptState[int, object]:
        """Keys and values are cut by head, where there are as many as devices; memories lie whole on all."""
        heads = (1 if self._parts > 1 else -1,)
        whole = jax.tree.map(lambda _: -1, prompt.memories)
        return PromptState(heads * len(prompt.keys), heads * len(prompt.values), -1, -1, whole)

    def decode(
        self,
        tokens: Array,
        rotation: tuple[Array, Array],
        prompt_seen: attention.Seen,
        column: Array,
        caption_seen: attention.Seen,
        prompt: PromptState,
        captions: CaptionState,
    ) -> tuple[Array, CaptionState]:
        """Feed one token of every caption.

        tokens: [B, G] int32. rotation: cosine and sine [B, rotary_dim / 2] of the tokens' place, see ``ahead``. column:
        int32 scalar, where this token's keys and values go. prompt_seen, caption_seen: the tokens that are seen;
        ``column`` is among them.
        Returns hidden states [B, G, D] after the final norm, which predict the next token; the state with the token.
        """
        cos, sin = (x[:, None] for x in rotation)
        x = self._model.text.embed(tokens)
        keys, values = list(captions.columns.keys), list(captions.columns.values)
        memories = list(captions.carried)
        deltas = attentions = 0
        for layer in self.layers:
            if isinstance(layer, DeltaLayer):

                def recur(net: DeltaNet, entered: Entered, at: int = deltas) -> Array:
                    out, memory = net.token(
                        Entered(*map(_joined, entered)), jax.tree.map(_joined, memories[at])
                    )
                    memories[at] = jax.tree.map(lambda a: a.reshape(*tokens.shape, *a.shape[1:]), memory)
                    return out.reshape(*tokens.shape, *out.shape[1:])

                x, deltas = layer(x, recur), deltas + 1
                continue

            def attend(q: Array, k: Array, v: Array, at: int = attentions) -> Array:
                new_keys, new_values = (attention.rows_of(a, captions.parts) for a in (k, v))
                put = jax.lax.dynamic_update_slice_in_dim
                keys[at] = put(keys[at], new_keys[..., None], column, axis=2)
                values[at] = put(values[at], new_values[:, None], column, axis=1)
                own = attention.Cached(keys[at], values[at], caption_seen, captions.parts)
                shared = attention.Cached(prompt.keys[at], prompt.values[at], prompt_seen)
                return self._model.kernel.decode(q, shared, own)

            x, attentions = layer(x, cos, sin, attend), attentions + 1
        columns = CaptionCache(tuple(keys), tuple(values))
        return self._model.text.norm(x), replace(captions, columns=columns, carried=tuple(memories))


_Layer = TypeVar("_Layer", DeltaLayer, AttentionLayer)
_Carry: TypeAlias = tuple[Array, tuple[Array, ...], tuple[Array, ...], tuple[Memory, ...]]
"""Hidden states [B, D] of the last real tokens, as far as they have come; keys and values [B, P, K, d] of each layer of
attention; memories of each gated delta rule."""


def _joined(x: Array) -> Array:
    """[B, G, ...] -> [B G, ...]."""
    return x.reshape(-1, *x.shape[2:])
