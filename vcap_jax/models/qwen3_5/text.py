"""The text decoder: blocks of gated delta rules and one layer of gated attention, SwiGLU behind each.

A layer knows nothing of prompts, captions and caches: attention hands queries, keys and values to the ``attend``
function of the caller, a delta rule hands its inputs to ``recur``, and everything else works token by token. Matches
the public Qwen3.5 text model (transformers 5.23).

Layers of a kind are one module with a leading axis. The projections of a layer are one matrix: a small model's time
is the number of its operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from vcap_jax.models.family import Params
from vcap_jax.models.layers import linears, normal_param, sigmoid
from vcap_jax.models.qwen3_5 import delta_rule
from vcap_jax.models.qwen3_5.config import FULL, LINEAR, TextConfig
from vcap_jax.models.qwen3_vl import rope
from vcap_jax.models.qwen3_vl.text import MLP, Attend, Embedding
from vcap_jax.models.remat import LAYER_INPUT, offloads, rematerialised
from vcap_jax.parallel.group_sharding import by_group, cut_sequence, whole_sequence, whole_stack

Array = jax.Array


def wide(param_dtype: DTypeLike) -> np.dtype:
    """What parameters are held in that are computed with in float32, where others are held in ``param_dtype``."""
    return np.dtype(jnp.promote_types(param_dtype, jnp.float32))


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis, scaled by ``1 + scale``, all in float32: scale [*stack, size]."""

    def __init__(self, size: int, eps: float, *, param_dtype: DTypeLike, stack: tuple[int, ...] = ()) -> None:
        self.scale = nnx.Param(jnp.zeros((*stack, size), wide(param_dtype)))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return (normed * (1 + self.scale[...].astype(jnp.float32))).astype(x.dtype)


class GatedRMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis, scaled, then times the SiLU of a gate: scale [*stack, size]."""

    def __init__(self, size: int, eps: float, *, param_dtype: DTypeLike, stack: tuple[int, ...] = ()) -> None:
        self.scale = nnx.Param(jnp.ones((*stack, size), wide(param_dtype)))
        self.eps = eps

    def __call__(self, x: Array, gate: Array) -> Array:
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        scaled = self.scale[...].astype(x.dtype) * normed.astype(x.dtype)
        return (scaled * jax.nn.silu(gate.astype(jnp.float32))).astype(x.dtype)


class Attention(nnx.Module):
    """Gated attention: each head's output times the sigmoid of a gate; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        heads, key_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        linear = linears(config.initializer_range, rngs, param_dtype, stack, use_bias=False)
        self.qkv = linear(config.hidden_size, 2 * (heads + key_heads) * dim)
        self.out = linear(heads * dim, config.hidden_size)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype, stack=stack)
        self.k_norm = RMSNorm(dim, config.rms_norm_eps, param_dtype=param_dtype, stack=stack)
        self.heads, self.key_heads, self.dim, self.turned = heads, key_heads, dim, config.rotary_dim

    def __call__(self, x: Array, cos: Array, sin: Array, attend: Attend) -> Array:
        """x: [..., D]; cos, sin: [..., rotary_dim / 2]."""
        qkv = whole_sequence(by_group(self.qkv(x))).reshape(*x.shape[:-1], -1, self.dim)
        # A head's query stands beside its gate.
        queries, keys, values = jnp.split(qkv, [2 * self.heads, 2 * self.heads + self.key_heads], axis=-2)
        queries, gates = jnp.split(queries.reshape(*x.shape[:-1], self.heads, 2 * self.dim), 2, axis=-1)
        out = attend(
            self._turned(self.q_norm(queries), cos, sin), self._turned(self.k_norm(keys), cos, sin), values
        )
        gated = out * sigmoid(gates)
        return by_group(self.out(whole_sequence(gated.reshape(*x.shape[:-1], -1))))

    def _turned(self, x: Array, cos: Array, sin: Array) -> Array:
        """The first dimensions of every head rotated."""
        turned = rope.apply_rope(x[..., : self.turned], cos, sin)
        return jnp.concatenate([turned, x[..., self.turned :]], axis=-1)


class Entered(NamedTuple):
    """What tokens bring to a gated delta rule.

    channels: [..., channels] before the convolution. decay: float32 [..., H], beta: [..., H]; see ``delta_rule.rule``.
    """

    channels: Array
    decay: Array
    beta: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """What a gated delta rule keeps of the tokens before: the size does not grow with them.

    inputs: [N, W - 1, channels], the convolution's last ones. state: float32 [N, H, Dk, Dv].
    """

    inputs: Array
    state: Array


Recur = Callable[["DeltaNet", Entered], Array]
"""(the layer's own, [B, S, ...] or [B, G, ...]) -> answers [..., H, Dv]."""


class DeltaNet(nnx.Module):
    """Projections, convolution and norm around a gated delta rule; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        heads, value_dim = config.linear_num_value_heads, config.linear_value_head_dim
        linear = linears(config.initializer_range, rngs, param_dtype, stack, use_bias=False)
        self.enter = linear(config.hidden_size, config.linear_channels + heads * value_dim + 2 * heads)
        width = (*stack, config.linear_conv_kernel_dim, config.linear_channels)
        self.conv = normal_param(rngs, width, config.initializer_range, wide(param_dtype))
        self.log_rate = nnx.Param(jnp.zeros((*stack, heads), wide(param_dtype)))
        self.rate_bias = nnx.Param(jnp.ones((*stack, heads), wide(param_dtype)))
        self.norm = GatedRMSNorm(value_dim, config.rms_norm_eps, param_dtype=param_dtype, stack=stack)
        self.leave = linear(heads * value_dim, config.hidden_size)
        self.channels, self.heads, self.value_dim = config.linear_channels, heads, value_dim
        self.key_heads, self.key_dim = config.linear_num_key_heads, config.linear_key_head_dim
        self.conv_width = config.linear_conv_kernel_dim

    def __call__(self, x: Array, recur: Recur) -> Array:
        """x: [..., D]."""
        entered = whole_sequence(by_group(self.enter(x)))
        sizes = (self.channels, self.heads * self.value_dim, self.heads)
        stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        channels, gate, beta, rate = jnp.split(entered, stops, axis=-1)
        rate = rate.astype(jnp.float32) + self.rate_bias[...].astype(jnp.float32)
        decay = -jnp.exp(self.log_rate[...].astype(jnp.float32)) * jax.nn.softplus(rate)
        out = recur(self, Entered(channels, decay, sigmoid(beta)))
        out = self.norm(out, gate.reshape(out.shape))
        return by_group(self.leave(whole_sequence(out.reshape(*x.shape[:-1], -1))))

    def nothing(self, *lead: int, dtype: DTypeLike) -> Memory:
        """The memory before the first token, [*lead, ...]."""
        inputs = jnp.zeros((*lead, self.conv_width - 1, self.channels), dtype)
        return Memory(inputs, jnp.zeros((*lead, self.heads, self.key_dim, self.value_dim), jnp.float32))

    def sequence(self, entered: Entered, memory: Memory, counts: Array | None = None) -> tuple[Array, Memory]:
        """Tokens one after the other: [N, S, ...] -> answers [N, S, H, Dv], and the memory behind them.

        counts: int32 [N], how many tokens are real, the others behind them; None: all.
        """
        channels, decay, beta = entered
        if counts is not None:
            real = (jnp.arange(channels.shape[1]) < counts[:, None])[..., None]
            decay, beta = jnp.where(real, decay, 0), jnp.where(real, beta, 0)
        conv = self.conv[...]
        q, k, v = self._heads(delta_rule.convolved(channels, memory.inputs, conv))
        out, state = delta_rule.rule(q, k, v, decay, beta, memory.state)
        return out, Memory(delta_rule.last_inputs(channels, memory.inputs, counts), state)

    def token(self, entered: Entered, memory: Memory) -> tuple[Array, Memory]:
        """One token of each sequence: [N, ...] -> answers [N, H, Dv], and the memory behind it."""
        channels = entered.channels[:, None]
        q, k, v = self._heads(delta_rule.convolved(channels, memory.inputs, self.conv[...])[:, 0])
        out, state = delta_rule.step(q, k, v, entered.decay, entered.beta, memory.state)
        return out, Memory(delta_rule.last_inputs(channels, memory.inputs, None), state)

    def _heads(self, channels: Array) -> tuple[Array, Array, Array]:
        """Queries, keys, values [..., heads, numbers of each]."""
        keys = self.key_heads * self.key_dim
        q, k, v = jnp.split(channels, [keys, 2 * keys], axis=-1)
        q, k = (x.reshape(*x.shape[:-1], self.key_heads, self.key_dim) for x in (q, k))
        return q, k, v.reshape(*v.shape[:-1], self.heads, self.value_dim)


class DeltaLayer(nnx.Module):
    """Pre-norm gated delta rule and SwiGLU; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        norm = functools.partial(
            RMSNorm, config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype, stack=stack
        )
        self.input_norm, self.post_mixer_norm = norm(), norm()
        self.delta = DeltaNet(config, rngs=rngs, param_dtype=param_dtype, stack=stack)
        self.mlp = MLP(config, rngs=rngs, param_dtype=param_dtype, stack=stack)

    def __call__(self, x: Array, recur: Recur) -> Array:
        x = x + self.delta(self.input_norm(x), recur)
        return x + self.mlp(self.post_mixer_norm(x))


class AttentionLayer(nnx.Module):
    """Pre-norm gated attention and SwiGLU; ``stack`` copies on leading axes."""

    def __init__(
        self, config: TextConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        norm = functools.partial(
            RMSNorm, config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype, stack=stack
        )
        self.input_norm, self.post_mixer_norm = norm(), norm()
        self.attention = Attention(config, rngs=rngs, param_dtype=param_dtype, stack=stack)
        self.mlp = MLP(config, rngs=rngs, param_dtype=param_dtype, stack=stack)

    def __call__(self, x: Array, cos: Array, sin: Array, attend: Attend) -> Array:
        x = x + self.attention(self.input_norm(x), cos, sin, attend)
        return x + self.mlp(self.post_mixer_norm(x))


class Decoder(Embedding):
    """Embedding table, both stacks of layers and the final norm."""

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
        self.config = config

        def stack(kind: str) -> tuple[int, ...]:
            return (len(config.numbers_of(kind)),)

        self.delta_layers = DeltaLayer(config, rngs=rngs, param_dtype=param_dtype, stack=stack(LINEAR))
        self.attention_layers = AttentionLayer(config, rngs=rngs, param_dtype=param_dtype, stack=stack(FULL))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, param_dtype=param_dtype)

    def __call__(self, x: Array, cos: Array, sin: Array, attend: Attend, recur: Recur) -> Array:
        """Run all layers and the final norm.

        x: [B, S, D] embedded tokens. cos, sin: float32 [B, S, rotary_dim / 2].
        Returns hidden states after the final norm.
        """
        blocks, deltas = self.config.blocks, self.config.full_attention_interval - 1
        of_delta, delta_params = nnx.split(self.delta_layers)
        of_attention, attention_params = nnx.split(self.attention_layers)
        delta_params = jax.tree.map(
            lambda a: whole_stack(a).reshape(blocks, deltas, *a.shape[1:]), delta_params
        )
        attention_params = jax.tree.map(whole_stack, attention_params)

        def layer(run: Callable[[Params, Array], Array]) -> Callable[[Params, Array], Array]:
            def named(params: Params, x: Array) -> Array:
                x = checkpoint_name(x, LAYER_INPUT) if offloads(self.remat) else x
                return cut_sequence(run(params, x))

            return rematerialised(named, self.remat, in_turn=True)

        # Each layer is computed again by itself: a whole block's inner results would be four layers'.
        delta = layer(lambda params, x: nnx.merge(of_delta, params)(x, recur))
        attention = layer(lambda params, x: nnx.merge(of_attention, params)(x, cos, sin, attend))

        def block(x: Array, params: tuple[Params, Params]) -> tuple[Array, None]:
            of_deltas, of_one = params
            for i in range(deltas):
                x = delta(jax.tree.map(lambda a, i=i: a[i], of_deltas), x)
            return attention(of_one, x), None

        x, _ = jax.lax.scan(block, cut_sequence(x, whole=True), (delta_params, attention_params))
        return self.norm(x)
