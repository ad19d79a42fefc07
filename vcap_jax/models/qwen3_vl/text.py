"""The text decoder: grouped-query attention with q/k norm, M-RoPE, SwiGLU, DeepStack.

A layer knows nothing of prompts, captions and caches: it hands queries, keys and values to the ``attend``
function of the caller, and everything else in it works token by token. So a prompt, a shared-prefix group
and one decoding step are the same layers under different attention. Matches the public Qwen3-VL text model
(transformers 5.23).

The projections q, k, v are one matrix, and so are gate and up: a small model's time is the number of its
operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vcap_jax.models.layers import (
    ACTIVATIONS,
    Linear,
    RMSNorm,
    normal_param,
    rms_norm,
    scan_layers,
    take_rows,
)
from vcap_jax.models.qwen3_vl import rope
from vcap_jax.models.qwen3_vl.config import TextConfig
from vcap_jax.parallel.group_sharding import by_group

Array = jax.Array
Attend = Callable[[Array, Array, Array, Any, Any], tuple[Array, Any, Any]]
"""``(queries [..., H, d], keys [..., K, d], values [..., K, d], state, x) -> (output [..., H, d], state,
y)``, where ``state`` is carried from layer to layer, ``x`` is (layer index, the layer's slice of ``xs``),
``y`` is stacked.
"""


class Attention(nnx.Module):
    """Projections, norms and rotation around an attention function; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: Any, stack: tuple[int, ...]
    ) -> None:
        heads, key_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        linear = {
            "rngs": rngs,
            "param_dtype": param_dtype,
            "stddev": config.initializer_range,
            "stack": stack,
        }
        linear["use_bias"] = config.attention_bias
        self.qkv = Linear(config.hidden_size, (heads + 2 * key_heads) * dim, **linear)
        self.out = Linear(heads * dim, config.hidden_size, **linear)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype, stack=stack)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype, stack=stack)
        self.heads, self.key_heads, self.dim = heads, key_heads, dim

    def __call__(
        self, x: Array, cos: Array, sin: Array, attend: Attend, state: Any, xs: Any
    ) -> tuple[Array, Any, Any]:
        """x: [..., D]; cos, sin: [..., head_dim / 2]."""
        qkv = by_group(self.qkv(x)).reshape(*x.shape[:-1], -1, self.dim)
        qk, values = jnp.split(qkv, [self.heads + self.key_heads], axis=-2)
        # Queries and keys are normalised and rotated as one array: half the operations.
        # (Their scales are chosen, not joined: XLA's GPU compiler, JAX 0.10, fails on a join of broadcasts here.)
        is_query = jnp.arange(self.heads + self.key_heads)[:, None] < self.heads
        scales = jnp.where(is_query, self.q_norm.scale[...], self.k_norm.scale[...])
        qk = rope.apply_rope(rms_norm(qk, scales, self.q_norm.eps), cos, sin)
        queries, keys = jnp.split(qk, [self.heads], axis=-2)
        out, state, y = attend(queries, keys, values, state, xs)
        return by_group(self.out(out.reshape(*x.shape[:-1], -1))), state, y


class MLP(nnx.Module):
    """SwiGLU: ``down(act(gate(x)) * up(x))``."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: Any, stack: tuple[int, ...]
    ) -> None:
        linear = {
            "rngs": rngs,
            "param_dtype": param_dtype,
            "stddev": config.initializer_range,
            "stack": stack,
        }
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, use_bias=False, **linear)
        self.down = Linear(config.intermediate_size, config.hidden_size, use_bias=False, **linear)
        self.activation = config.hidden_act

    def __call__(self, x: Array) -> Array:
        gate, up = jnp.split(by_group(self.gate_up(x)), 2, axis=-1)
        return by_group(self.down(ACTIVATIONS[self.activation](gate) * up))


class DecoderLayer(nnx.Module):
    """Pre-norm attention and SwiGLU; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: Any, stack: tuple[int, ...]
    ) -> None:
        common = {"rngs": rngs, "param_dtype": param_dtype, "stack": stack}
        norm = {"eps": config.rms_norm_eps, "param_dtype": param_dtype, "stack": stack}
        self.input_norm = RMSNorm(config.hidden_size, **norm)
        self.attention = Attention(config, **common)
        self.post_attention_norm = RMSNorm(config.hidden_size, **norm)
        self.mlp = MLP(config, **common)

    def __call__(
        self, x: Array, cos: Array, sin: Array, attend: Attend, state: Any, xs: Any
    ) -> tuple[Array, Any, Any]:
        attended, state, y = self.attention(self.input_norm(x), cos, sin, attend, state, xs)
        x = x + attended
        return x + self.mlp(self.post_attention_norm(x)), state, y


class Decoder(nnx.Module):
    """Embedding table, stacked layers and final norm."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, dtype: Any, param_dtype: Any, remat: str = "none"
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.remat = remat
        table = (config.vocab_size, config.hidden_size)
        self.embed_tokens = normal_param(rngs, table, config.initializer_range, param_dtype)
        self.layers = DecoderLayer(
            config, rngs=rngs, param_dtype=param_dtype, stack=(config.num_hidden_layers,)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype)

    def embed(self, tokens: Array) -> Array:
        """int32 [...] -> [..., D]."""
        return take_rows(self.embed_tokens[...], tokens).astype(self.dtype)

    def __call__(
        self,
        x: Array,
        cos: Array,
        sin: Array,
        attend: Attend,
        *,
        state: Any = None,
        xs: Any = None,
        deepstack: Array | None = None,
        visual_index: Array | None = None,
    ) -> tuple[Array, Any, Any]:
        """Run all layers and the final norm.

        Args:
            x: [B, S, D] (or [B, G, D] when decoding) embedded tokens.
            cos, sin: [B, S, head_dim / 2] float32.
            attend, state, xs: see ``Attend``; ``xs`` has a leading layer axis.
            deepstack: [B, K, V, D]; [:, k] is added after layer k where visual_index >= 0.
            visual_index: [B, P], for the first P of the S tokens.

        Returns:
            Hidden states after the final norm, the last state, and the stacked ``y`` of the layers.
        """
        taps = 0 if deepstack is None else deepstack.shape[1]

        def body(
            layer: DecoderLayer, carry: tuple[Array, Any], x_layer: Any
        ) -> tuple[tuple[Array, Any], Any]:
            x, state = carry
            x, state, y = layer(x, cos, sin, attend, state, x_layer)
            if taps:
                index = x_layer[0]
                x = jax.lax.cond(index < taps, add_deepstack, lambda x, _: x, x, index)
            return (x, state), y

        def add_deepstack(x: Array, index: Array) -> Array:
            assert deepstack is not None
            assert visual_index is not None
            features = jax.lax.dynamic_index_in_dim(
                deepstack, jnp.minimum(index, taps - 1), 1, keepdims=False
            )
            added = gather_features(features, visual_index).astype(x.dtype)
            return x + jnp.pad(added, ((0, 0), (0, x.shape[1] - added.shape[1]), (0, 0)))

        (x, state), ys = scan_layers(self.layers, body, (x, state), xs, remat=self.remat)
        return self.norm(x), state, ys


def gather_features(features: Array, visual_index: Array) -> Array:
    """Each token's own visual feature: [B, V, D], [B, P] -> [B, P, D], zero where the index is negative."""
    rows = jax.vmap(take_rows)(features, jnp.maximum(visual_index, 0))
    return jnp.where(visual_index[..., None] >= 0, rows, 0)
