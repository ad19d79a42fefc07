"""A decoder with a recurrent state beside keys and values, and no rotary positions: very small."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vcap_jax.kernels import attention
from vcap_jax.models.family import CaptionState, DecodeParams, ModelFamily, Params
from vcap_jax.models.layers import Linear, RMSNorm, normal_param, take_rows
from vcap_jax.models.weight_map import Rule, WeightMap, flat_parameters, spelled_out
from vcap_jax.parallel.arrays import AnyArray

Array = jax.Array
Columns = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """config.json of the family."""

    vocab_size: int
    width: int = 32
    heads: int = 2
    head_dim: int = 16
    patch_numbers: int = 192
    picture_token_id: int = 0
    eos_token_id: int = 1

    @property
    def head_sizes(self) -> dict[str, int]:
        return {"text": self.head_dim}  # its vision side attends to nothing

    @property
    def end_token_id(self) -> int:
        return self.eos_token_id

    @property
    def special_token_ids(self) -> tuple[int, ...]:
        return (self.picture_token_id,)

    def to_dict(self) -> dict[str, Any]:
        return {"model_type": "tiny_recurrent", **asdict(self)}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prompts:
    """tokens: [B, P]. lengths: [B]. vision: uint8 [B, V, numbers], or None."""

    tokens: AnyArray
    lengths: AnyArray
    vision: AnyArray | None

    def without_vision(self) -> Prompts:
        return replace(self, vision=None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Of prompts. keys: [B, H, d, P]; values: [B, H, P, d]; lengths: [B]; memory: [B, D], behind the last token."""

    keys: Array
    values: Array
    lengths: Array
    memory: Array


class Visual(nnx.Module):
    def __init__(self, spec: Spec, **linear: Any) -> None:
        self.patches = Linear(spec.patch_numbers, spec.width, use_bias=True, **linear)


class Text(nnx.Module):
    """A recurrent layer, and one of attention without positions: the recurrence knows the order."""

    def __init__(self, spec: Spec, **linear: Any) -> None:
        inner = spec.heads * spec.head_dim
        self.embed_tokens = normal_param(
            linear["rngs"], (spec.vocab_size, spec.width), 1.0, linear["param_dtype"]
        )
        self.norm_in = RMSNorm(spec.width, 1e-6, param_dtype=linear["param_dtype"])
        self.decay = nnx.Param(jnp.linspace(-1.0, 3.0, spec.width).astype(linear["param_dtype"]))
        self.enter = Linear(spec.width, spec.width, use_bias=False, **linear)
        self.leave = Linear(spec.width, spec.width, use_bias=False, **linear)
        self.qkv = Linear(spec.width, 3 * inner, use_bias=False, **linear)
        self.out = Linear(inner, spec.width, use_bias=False, **linear)
        self.norm = RMSNorm(spec.width, 1e-6, param_dtype=linear["param_dtype"])


class RecurrentCaptioner(nnx.Module):
    def __init__(
        self,
        spec: Spec,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
        param_dtype: DTypeLike,
        remat: str,
        kernel: attention.Kernel,
    ) -> None:
        del remat  # two layers: nothing to compute again
        self.config, self.dtype, self.kernel = spec, jnp.dtype(dtype), kernel
        linear: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype, "stddev": 0.3}
        self.visual = Visual(spec, **linear)
        self.text = Text(spec, **linear)

    @classmethod
    def family(cls) -> ModelFamily:
        from tests.models.recurrent_family.family import the_family  # which needs this class

        return the_family()

    @property
    def weight_map(self) -> WeightMap:
        return weight_map(self.config)

    def encode_vision(self, vision: AnyArray) -> Array:
        levels = jnp.asarray(vision).astype(self.dtype) / 255
        return self.visual.patches(levels)

    def head(self) -> Array:
        return self.text.embed_tokens[...].T / 8

    def caption_hidden(self, prompt: Prompts, features: Array | None, captions: Array) -> Array:
        captions = jnp.asarray(captions)
        batch, group, tokens = captions.shape
        x = self.embed_prompt(prompt, features)
        memories, x = self.remember(x, jnp.zeros((batch, x.shape[-1]), x.dtype))
        start = last_real(memories, prompt.lengths)
        start = jnp.broadcast_to(start[:, None], (batch, group, start.shape[-1]))
        own = self.embed(captions).reshape(batch * group, tokens, -1)
        _, own = self.remember(own, start.reshape(batch * group, -1))
        joined = jnp.concatenate([x, own.reshape(batch, group * tokens, -1)], axis=1)
        lengths, width = jnp.asarray(prompt.lengths), prompt.tokens.shape[1]

        def attend(q: Array, k: Array, v: Array) -> Array:
            return attention.grouped(q, k, v, lengths, width, group, self.kernel)

        hidden = self.attend(joined, attend)
        first = last_real(hidden[:, :width], lengths)[:, None, None]
        first = jnp.broadcast_to(first, (batch, group, 1, hidden.shape[-1]))
        rest = hidden[:, width:].reshape(batch, group, tokens, -1)[:, :, :-1]
        return jnp.concatenate([first, rest], axis=2)

    def embed(self, tokens: Array) -> Array:
        return take_rows(self.text.embed_tokens[...], tokens).astype(self.dtype)

    def embed_prompt(self, prompt: Prompts, features: Array | None) -> Array:
        tokens = jnp.asarray(prompt.tokens)
        x = self.embed(tokens)
        if features is None:
            return x
        seen = tokens == self.config.picture_token_id
        index = jnp.maximum(jnp.cumsum(seen, axis=1) - 1, 0)
        return jnp.where(seen[..., None], jax.vmap(take_rows)(features, index).astype(x.dtype), x)

    def remember(self, x: Array, memory: Array) -> tuple[Array, Array]:
        """[N, S, D], [N, D] -> the memory behind each token [N, S, D], and the layer's result [N, S, D]."""
        entered = jnp.swapaxes(self.text.enter(self.text.norm_in(x)), 0, 1)

        def one(memory: Array, new: Array) -> tuple[Array, Array]:
            memory = self.renewed(memory, new)
            return memory, memory

        _, memories = jax.lax.scan(one, memory, entered)
        memories = jnp.swapaxes(memories, 0, 1)
        return memories, x + self.text.leave(memories)

    def renewed(self, memory: Array, new: Array) -> Array:
        kept = jax.nn.sigmoid(self.text.decay[...].astype(new.dtype))
        return kept * memory + (1 - kept) * new

    def attend(self, x: Array, attend: Callable[[Array, Array, Array], Array]) -> Array:
        """[..., D] -> the final hidden states. attend: of queries, keys and values [..., H, d]."""
        qkv = self.text.qkv(x).reshape(*x.shape[:-1], 3, self.config.heads, self.config.head_dim)
        out = attend(*(qkv[..., i, :, :] for i in range(3)))
        return self.text.norm(x + self.text.out(out.reshape(*x.shape[:-1], -1)))


def last_real(x: Array, lengths: AnyArray) -> Array:
    """[B, P, D], [B] -> [B, D]."""
    return jax.vmap(take_rows)(x, jnp.maximum(jnp.asarray(lengths) - 1, 0))


class RecurrentDecoder:
    """Prefill and decode. A caption has keys and values, in columns, and a memory, which it carries."""

    def __init__(self, graphdef: nnx.GraphDef[RecurrentCaptioner], params: DecodeParams[Params]) -> None:
        self._model = nnx.merge(graphdef, params.rest)

    @property
    def vocab_size(self) -> int:
        return self._model.config.vocab_size

    def empty(
        self, *, groups: int, prompt_tokens: int, captions: int, caption_tokens: int
    ) -> tuple[State, CaptionState[Columns, Array]]:
        spec, dtype = self._model.config, self._model.dtype
        heads, dim, rows = spec.heads, spec.head_dim, groups * captions * spec.heads
        prompt = State(
            jnp.zeros((groups, heads, dim, prompt_tokens), dtype),
            jnp.zeros((groups, heads, prompt_tokens, dim), dtype),
            jnp.zeros((groups,), jnp.int32),
            jnp.zeros((groups, spec.width), dtype),
        )
        columns = {
            "keys": jnp.zeros((rows, dim, caption_tokens), dtype),
            "values": jnp.zeros((rows, caption_tokens, dim), dtype),
        }
        return prompt, CaptionState(columns, jnp.zeros((groups, captions, spec.width), dtype))

    def prefill(self, prompt: Prompts, features: Array | None, *, chunk: int) -> tuple[Array, State]:
        del chunk  # prompts of a few dozen tokens
        model, lengths = self._model, jnp.asarray(prompt.lengths)
        x = model.embed_prompt(prompt, features)
        memories, x = model.remember(x, jnp.zeros((x.shape[0], x.shape[-1]), x.dtype))
        found: list[Array] = []

        def attend(q: Array, k: Array, v: Array) -> Array:
            found.extend((jnp.transpose(k, (0, 2, 3, 1)), jnp.swapaxes(v, 1, 2)))
            return attention.causal(q, k, v, model.kernel)

        hidden = model.attend(x, attend)
        keys, values = found
        return last_real(hidden, lengths), State(keys, values, lengths, last_real(memories, lengths))

    def begin(self, prompt: State, captions: int) -> Array:
        groups, width = prompt.memory.shape
        return jnp.broadcast_to(prompt.memory[:, None], (groups, captions, width))

    def ahead(self, steps: Array, prompt: State) -> tuple[tuple[()], attention.Seen]:
        del steps  # positions are not its concern
        return (), attention.Seen.first(prompt.lengths, prompt.keys.shape[-1])

    def decode(
        self,
        tokens: Array,
        at: tuple[()],
        fixed: attention.Seen,
        column: Array,
        seen: attention.Seen,
        prompt: State,
        captions: CaptionState[Columns, Array],
    ) -> tuple[Array, CaptionState[Columns, Array]]:
        del at
        model, columns = self._model, dict(captions.columns)
        x = model.embed(tokens)
        memory = model.renewed(captions.carried, model.text.enter(model.text.norm_in(x)))
        x = x + model.text.leave(memory)

        def attend(q: Array, k: Array, v: Array) -> Array:
            new_keys, new_values = (a.reshape(-1, a.shape[-1]) for a in (k, v))
            put = jax.lax.dynamic_update_slice_in_dim
            columns["keys"] = put(columns["keys"], new_keys[..., None], column, axis=2)
            columns["values"] = put(columns["values"], new_values[:, None], column, axis=1)
            own = attention.Cached(columns["keys"], columns["values"], seen)
            return model.kernel.decode(q, attention.Cached(prompt.keys, prompt.values, fixed), own)

        return model.attend(x, attend), CaptionState(columns, memory)

    def logits(self, hidden: Array) -> Array:
        return (hidden @ self._model.head().astype(hidden.dtype)).astype(jnp.float32)

    def token_axes(self, columns: Columns) -> dict[str, int]:
        return {"keys": 2, "values": 1} if columns else {}

    def tensor_axes(self, prompt: State) -> State:
        return jax.tree.map(lambda _: -1, prompt)


_NAMES = {
    "visual.patches.weight": ("visual.patches.kernel", "linear"),
    "visual.patches.bias": ("visual.patches.bias", "same"),
    "text.embed.weight": ("text.embed_tokens", "same"),
    "text.recurrent.norm.weight": ("text.norm_in.scale", "same"),
    "text.recurrent.decay": ("text.decay", "same"),
    "text.recurrent.enter.weight": ("text.enter.kernel", "linear"),
    "text.recurrent.leave.weight": ("text.leave.kernel", "linear"),
    "text.attention.o_proj.weight": ("text.out.kernel", "linear"),
    "text.norm.weight": ("text.norm.scale", "same"),
}


@functools.cache
def weight_map(spec: Spec) -> WeightMap:
    inner = spec.heads * spec.head_dim
    parts = {name: (i * inner, (i + 1) * inner) for i, name in enumerate(("q", "k", "v"))}
    rules = [Rule(name, path, layout) for name, (path, layout) in _NAMES.items()]  # type: ignore[arg-type]
    rules += [Rule(f"text.attention.{part}_proj.weight", "text.qkv.kernel", "linear", part) for part in parts]
    shapes = {path: leaf.shape for path, leaf in flat_parameters(abstract(spec)).items()}
    tensors = spelled_out(rules, shapes, columns=parts.__getitem__, convolution=lambda shape: shape)
    return WeightMap(tensors, adaptable="text.")


def abstract(spec: Spec, **settings: Any) -> RecurrentCaptioner:
    """With shapes in place of arrays."""
    return nnx.eval_shape(lambda: drawn(spec, **settings))


def drawn(spec: Spec, seed: int = 0, **settings: Any) -> RecurrentCaptioner:
    """With random parameters."""
    default = {"dtype": jnp.float32, "param_dtype": jnp.float32, "remat": "none", "kernel": attention.CHUNKED}
    return RecurrentCaptioner(spec, rngs=nnx.Rngs(seed), **{**default, **settings})
