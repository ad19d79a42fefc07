"""The few parametrised layers both towers are made of.

Each can hold a ``stack`` of independent copies on leading axes: the layers of a tower are one module with a
leading layer axis, which ``scan_layers`` slices, so that the traced program contains one layer whatever the
depth. Parameters may be kept in another type than the computation's: they are cast to the input's on use.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from vcap_jax.models.remat import LAYER_INPUT, offloads, rematerialised
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.parallel.group_sharding import whole_stack

Array = jax.Array
Module = TypeVar("Module", bound=nnx.Module)
Carry = TypeVar("Carry")
Slice = TypeVar("Slice")


def rounded_once(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """``function`` of each number, computed in float32 and rounded to x's type at the end, as in PyTorch: where each
    step is rounded (XLA does on a CPU), bfloat16 results are up to twice as far off."""

    def once(x: Array) -> Array:
        return function(x.astype(jnp.float32)).astype(x.dtype)

    return once


sigmoid = rounded_once(jax.nn.sigmoid)
silu = rounded_once(jax.nn.silu)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": rounded_once(lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu_pytorch_tanh": rounded_once(lambda x: jax.nn.gelu(x, approximate=True)),
    "quick_gelu": rounded_once(lambda x: x * jax.nn.sigmoid(1.702 * x)),
    "relu": jax.nn.relu,
    "silu": silu,
}


def normal_param(
    rngs: nnx.Rngs, shape: tuple[int, ...], stddev: float, dtype: DTypeLike
) -> nnx.Param[jax.Array]:
    """A parameter drawn from N(0, stddev^2).

    NumPy draws it: XLA would compile a generator for every shape, which takes longer than anything else
    done with a small model, and large models are loaded, not drawn.
    """

    def draw(seed: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(np.asarray(seed)).standard_normal(shape, np.float32)
        return (stddev * noise).astype(jnp.dtype(dtype))

    seed = jax.random.key_data(rngs.params())
    if isinstance(seed, jax.core.Tracer):
        return nnx.Param(jax.pure_callback(draw, jax.ShapeDtypeStruct(shape, dtype), seed))
    # A callback outside of a program is a program of its own for every parameter.
    return nnx.Param(jnp.asarray(draw(np.asarray(seed))))


def take_rows(table: Array, index: Array) -> Array:
    """``table[index]`` for indices >= 0, clipped at the end: [R, D], int32 [...] -> [..., D]."""
    return table.at[index].get(mode="clip", wrap_negative_indices=False)


def part_columns(parts: tuple[tuple[int, int], ...], rank: int) -> tuple[tuple[slice, slice], ...]:
    """Where each part of an adapter lies: its columns of ``a``, its columns of ``b``."""
    stops = np.cumsum([stop - start for start, stop in parts]).tolist()
    return tuple(
        (slice(i * rank, (i + 1) * rank), slice(first, stop))
        for i, (first, stop) in enumerate(zip([0, *stops], stops, strict=False))
    )


class Adapter(nnx.Module):
    """A low-rank addition to a ``Linear`` (LoRA): ``scale * (x @ a) @ b``.

    Columns that join several matrices of the public model (q, k and v; gate and up) are parts with an ``a`` and a
    ``b`` of their own, so that this is exactly what separate adapters of those matrices are.

    a: [*stack, inputs, parts * rank], part after part. b: [*stack, rank, width of all parts together].
    parts: (first, last + 1) column of each part among the ``outputs`` of the layer, ascending; columns between them
        get nothing.
    """

    def __init__(
        self,
        a: Array | jax.ShapeDtypeStruct,
        b: Array | jax.ShapeDtypeStruct,
        *,
        rank: int,
        scale: float,
        parts: tuple[tuple[int, int], ...],
        outputs: int,
    ) -> None:
        self.a, self.b = nnx.Param(a), nnx.Param(b)
        self.rank, self.scale, self.parts, self.outputs = rank, scale, parts, outputs

    def __call__(self, x: Array) -> Array:
        """[..., inputs] -> [..., outputs]."""
        low = (x @ self.a[...].astype(x.dtype)) * self.scale
        b = self.b[...].astype(x.dtype)
        pieces, filled = [], 0
        for (start, stop), (inner, outer) in zip(
            self.parts, part_columns(self.parts, self.rank), strict=True
        ):
            if start > filled:
                pieces.append(jnp.zeros((*x.shape[:-1], start - filled), x.dtype))
            pieces.append(low[..., inner] @ b[..., outer])
            filled = stop
        if filled < self.outputs:
            pieces.append(jnp.zeros((*x.shape[:-1], self.outputs - filled), x.dtype))
        return jnp.concatenate(pieces, axis=-1) if len(pieces) > 1 else pieces[0]


class Linear(nnx.Module):
    """``x @ kernel + bias``: kernel [*stack, inputs, outputs], bias [*stack, outputs].

    ``adapter``, where there is one, adds to the product (see ``lora.attach``). ``product`` computes
    ``x @ kernel``; ``two_towers.TwoTowerDecoder`` puts another in its place.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        use_bias: bool,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
        stddev: float,
        stack: tuple[int, ...] = (),
    ) -> None:
        self.kernel = normal_param(rngs, (*stack, inputs, outputs), stddev, param_dtype)
        self.use_bias = use_bias
        if use_bias:
            self.bias = nnx.Param(jnp.zeros((*stack, outputs), param_dtype))
        self.adapter: Adapter | None = None
        self.product: Callable[[Array, Array], Array] = operator.matmul

    def __call__(self, x: Array) -> Array:
        """[..., inputs] -> [..., outputs]; with a stack, x leads with it: [*stack, n, inputs]."""
        y = self.product(x, self.kernel[...].astype(x.dtype))
        if self.adapter is not None:
            y = y + self.adapter(x)
        if self.use_bias:
            bias = self.bias[...].astype(x.dtype)
            y = y + (bias if bias.ndim == 1 else bias[..., None, :])
        return y


def linears(
    stddev: float, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...], *, use_bias: bool
) -> Callable[[int, int], Linear]:
    """Makes ``Linear`` layers that are alike but for their inputs and outputs."""
    return functools.partial(
        Linear, use_bias=use_bias, rngs=rngs, param_dtype=param_dtype, stddev=stddev, stack=stack
    )


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis, statistics in float32: scale [*stack, size]."""

    def __init__(self, size: int, eps: float, *, param_dtype: DTypeLike, stack: tuple[int, ...] = ()) -> None:
        self.scale = nnx.Param(jnp.ones((*stack, size), param_dtype))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        return rms_norm(x, self.scale[...], self.eps)


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """``x / rms(x) * scale`` over the last axis, rounded to x's type before scaling (as the public model)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * scale.astype(x.dtype)


class LayerNorm(nnx.Module):
    """Layer norm over the last axis, in float32: scale and bias [*stack, size]."""

    def __init__(self, size: int, *, param_dtype: DTypeLike, stack: tuple[int, ...] = ()) -> None:
        self.scale = nnx.Param(jnp.ones((*stack, size), param_dtype))
        self.bias = nnx.Param(jnp.zeros((*stack, size), param_dtype))

    def __call__(self, x: Array) -> Array:
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-6)
        scale, bias = self.scale[...].astype(jnp.float32), self.bias[...].astype(jnp.float32)
        if scale.ndim > 1:
            scale, bias = scale[..., None, :], bias[..., None, :]
        return (normed * scale + bias).astype(x.dtype)


def scan_layers(
    layers: Module,
    body: Callable[[Module, Carry, AnyArray, Slice], Carry],
    carry: Carry,
    xs: Slice,
    *,
    remat: str = "none",
) -> Carry:
    """Runs ``carry = body(layer, carry, index, x)`` over the leading axis of a stacked module, and returns the last
    carry.

    layers: a module whose parameters all have a leading layer axis. index: int32 scalar. xs: arrays with a leading
    layer axis, or None. remat: what the backward pass computes again, see ``vcap_jax.models.remat``.
    """
    graphdef, params = nnx.split(layers)
    params = jax.tree.map(whole_stack, params)
    depth = jax.tree.leaves(params)[0].shape[0]

    def step(carry: Carry, x: tuple[nnx.State[str | int, object], AnyArray, Slice]) -> tuple[Carry, None]:
        layer_params, index, x_layer = x
        if offloads(remat):
            carry = checkpoint_name(carry, LAYER_INPUT)
        return body(nnx.merge(graphdef, layer_params), carry, index, x_layer), None

    indices: AnyArray = np.arange(depth, dtype=np.int32)
    carry, _ = jax.lax.scan(rematerialised(step, remat), carry, (params, indices, xs))
    return carry
