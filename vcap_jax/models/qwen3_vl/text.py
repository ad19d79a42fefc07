"""The text decoder: grouped-query attention with q/k norm, M-RoPE, SwiGLU, DeepStack.

A layer knows nothing of prompts, captions and caches: it hands queries, keys and values to the ``attend``
function of the caller, and everything else in it works token by token. So a prompt, a shared-prefix group
and one decoding step are the same layers under different attention. Matches the public Qwen3-VL text model
(transformers 5.23).

The projections q, k, v are one matrix, and so are gate and up: a small model's time is the number of its
operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from vcap_jax.models.layers import (
    ACTIVATIONS,
    RMSNorm,
    linears,
    normal_param,
    rms_norm,
    scan_layers,
    take_rows,
)
from vcap_jax.models.qwen3_vl import rope
from vcap_jax.models.qwen3_vl.config import TextConfig, TextSizes
from vcap_jax.models.remat import MLP_HIDDEN
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.parallel.group_sharding import by_group, cut_sequence, looked_up, whole_sequence

Array = jax.Array
Attend = Callable[[Array, Array, Array], Array]
"""``(queries [..., H, d], keys [..., K, d], values [..., K, d]) -> output [..., H, d]``."""


class DeepStack(NamedTuple):
    """What the first layers add to the hidden states of visual tokens.

    features: [B, K, V, D]; [:, k] is added after layer k where visual_index >= 0. visual_index: [B, P] int32, for the
    first P tokens.
    """

    features: Array
    visual_index: Array


class Attention(nnx.Module):
    """Projections, norms and rotation around an attention function; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        heads, key_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        linear = linears(config.initializer_range, rngs, param_dtype, stack, use_bias=config.attention_bias)
        self.qkv = linear(config.hidden_size, (heads + 2 * key_heads) * dim)
        self.out = linear(heads * dim, config.hidden_size)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype, stack=stack)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype, stack=stack)
        self.heads, self.key_heads, self.dim = heads, key_heads, dim

    def __call__(self, x: Array, cos: Array, sin: Array, attend: Attend) -> Array:
        """x: [..., D]; cos, sin: [..., head_dim / 2]."""
        qkv = whole_sequence(by_group(self.qkv(x))).reshape(*x.shape[:-1], -1, self.dim)
        qk, values = jnp.split(qkv, [self.heads + self.key_heads], axis=-2)
        # Queries and keys are normalised and rotated as one array: half the operations.
        # (Their scales are chosen, not joined: XLA's GPU compiler, JAX 0.10, fails on a join of broadcasts here.)
        is_query = jnp.arange(self.heads + self.key_heads)[:, None] < self.heads
        scales = jnp.where(is_query, self.q_norm.scale[...], self.k_norm.scale[...])
        qk = rope.apply_rope(rms_norm(qk, scales, self.q_norm.eps), cos, sin)
        queries, keys = jnp.split(qk, [self.heads], axis=-2)
        out = attend(queries, keys, values)
        return by_group(self.out(whole_sequence(out.reshape(*x.shape[:-1], -1))))


class MLP(nnx.Module):
    """SwiGLU: ``down(act(gate(x)) * up(x))``."""

    def __init__(
        self, config: TextSizes, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        linear = linears(config.initializer_range, rngs, param_dtype, stack, use_bias=False)
        self.gate_up = linear(config.hidden_size, 2 * config.intermediate_size)
        self.down = linear(config.intermediate_size, config.hidden_size)
        self.activation = config.hidden_act

    def __call__(self, x: Array) -> Array:
        hidden = checkpoint_name(by_group(self.gate_up(x)), MLP_HIDDEN)
        gate, up = jnp.split(hidden, 2, axis=-1)
        return by_group(self.down(ACTIVATIONS[self.activation](gate) * up))


class DecoderLayer(nnx.Module):
    """Pre-norm attention and SwiGLU; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        norm = functools.partial(
            RMSNorm, config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype, stack=stack
        )
        self.input_norm = norm()
        self.attention = Attention(config, rngs=rngs, param_dtype=param_dtype, stack=stack)
        self.post_attention_norm = norm()
        self.mlp = MLP(config, rngs=rngs, param_dtype=param_dtype, stack=stack)

    def __call__(self, x: Array, cos: Array, sin: Array, attend: Attend) -> Array:
        x = x + self.attention(self.input_norm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_norm(x))


class Embedding(nnx.Module):
    """The table that any decoder begins with. remat: of its layers."""

    def __init__(
        self, config: TextSizes, *, rngs: nnx.Rngs, dtype: DTypeLike, param_dtype: DTypeLike, remat: str
    ) -> None:
        self.dtype, self.remat = dtype, remat
        table = (config.vocab_size, config.hidden_size)
        self.embed_tokens = normal_param(rngs, table, config.initializer_range, param_dtype)

    def embed(self, tokens: Array) -> Array:
        """int32 [...] -> [..., D]."""
        return looked_up(take_rows(self.embed_tokens[...], tokens)).astype(self.dtype)


class Decoder(Embedding):
    """Embedding table, stacked layers and final norm."""

    def __init__(
        self,
        config: TextConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
        param_dtype: DTypeLike,
        remat: str,
    ) -> None:
        super().__init__(config, rngs=rngs, dtype=dtype, param_dtype=param_dtype, remat=remat)
        self.layers = DecoderLayer(
            config, rngs=rngs, param_dtype=param_dtype, stack=(config.num_hidden_layers,)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype)

    def __call__(
        self, x: Array, cos: Array, sin: Array, attend: Attend, deepstack: DeepStack | None = None
    ) -> Array:
        """Hidden states [B, S, D] after all layers and the final norm.

        x: [B, S, D] embedded tokens. cos, sin: float32 [B, S, head_dim / 2].
        """

        def body(layer: DecoderLayer, x: Array, index: AnyArray, _: None) -> Array:
            x = layer(x, cos, sin, attend)
            x = x if deepstack is None else added(deepstack, x, index)
            return cut_sequence(x)

        def added(deepstack: DeepStack, x: Array, index: AnyArray) -> Array:
            taps = deepstack.features.shape[1]

            def add(x: Array, index: Array) -> Array:
                features = jax.lax.dynamic_index_in_dim(
                    deepstack.features, jnp.minimum(index, taps - 1), 1, keepdims=False
                )
                found = gather_features(features, deepstack.visual_index).astype(x.dtype)
                return x + jnp.pad(found, ((0, 0), (0, x.shape[1] - found.shape[1]), (0, 0)))

            return jax.lax.cond(index < taps, add, lambda x, _: x, x, index) if taps else x

        x = cut_sequence(x, whole=True)
        return self.norm(scan_layers(self.layers, body, x, None, remat=self.remat))


def gather_features(features: Array, visual_index: Array) -> Array:
    """Each token's own visual feature: [B, V, D], [B, P] -> [B, P, D], zero where the index is negative."""
    rows = jax.vmap(take_rows)(features, jnp.maximum(visual_index, 0))
    return jnp.where(visual_index[..., None] >= 0, rows, 0)
