"""The vision tower: patches of frames in, merged visual tokens and DeepStack features out.

Frames are the batch axis (see ``inputs``). Patches arrive in merge-block order: the ``merge**2`` patches
that become one visual token are neighbours. Everything that depends on a frame's size is computed from its
grid under ``jit``, so frames of different sizes share one compiled program. Matches the public Qwen3-VL
vision model (transformers 5.23).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from vcap_jax.kernels import attention
from vcap_jax.models.layers import (
    ACTIVATIONS,
    LayerNorm,
    Linear,
    linears,
    normal_param,
    scan_layers,
    take_rows,
)
from vcap_jax.models.qwen3_vl import rope
from vcap_jax.models.qwen3_vl.config import VisionConfig
from vcap_jax.models.qwen3_vl.inputs import PixelScale, VisionInputs, VisualFeatures
from vcap_jax.parallel.arrays import AnyArray
from vcap_jax.parallel.group_sharding import by_group

Array = jax.Array


def normalise(levels: Array, scale: PixelScale, config: VisionConfig, dtype: DTypeLike) -> Array:
    """Grey levels of patches to what the patch embedding takes, as many numbers of ``dtype``; as the public processor
    computes it on the host.

    levels: uint8 [..., C * depth * patch * patch]; depth is ``temporal_patch_size``, or 1 for still images.
    Raises TypeError for levels that are not uint8, ValueError for patches of another size, or a scale of another number
    of channels.
    """
    if levels.dtype != jnp.uint8:
        raise TypeError(
            f"patches are {levels.dtype}: the vision tower takes grey levels, uint8, and normalises them"
        )
    channels, depth, lead = config.in_channels, config.temporal_patch_size, levels.shape[:-1]
    area = config.patch_size**2
    if levels.shape[-1] not in (config.patch_dim, config.patch_dim // depth):
        raise ValueError(
            f"patches of {levels.shape[-1]} numbers: the model takes {config.patch_dim}, or {channels * area} for "
            "still images; encode the prompt with this checkpoint's processor"
        )
    if len(scale.mean) != channels or len(scale.std) != channels:
        raise ValueError(f"{scale} has not one mean and std for each of {channels} channels")
    mean, std = (np.asarray(x, np.float32)[:, None, None] for x in (scale.mean, scale.std))
    pixels = levels.reshape(*lead, channels, -1, area).astype(jnp.float32) * np.float32(scale.rescale_factor)
    return ((pixels - mean) / std).astype(dtype).reshape(levels.shape)


def patch_coordinates(grids: Array, length: int, merge: int) -> tuple[Array, Array]:
    """Row and column of every patch in merge-block order: two [N, L] int32 arrays; entries beyond a frame's patches are
    meaningless but within [0, 2^31).

    grids: [N, 2] int32 patch rows and columns of each frame. length: L, the padded number of patches of a frame.
    """
    block, inner = np.divmod(np.arange(length, dtype=np.int32), merge**2)
    inner_rows, inner_columns = np.divmod(inner, merge)
    # lax.div truncates where // floors: the same for these numbers, and a tenth of the operations.
    blocks_across = jnp.maximum(jax.lax.div(grids[:, 1:], jnp.int32(merge)), 1)
    dividend, divisor = jnp.broadcast_arrays(block, blocks_across)
    rows = jax.lax.div(dividend, divisor) * merge + inner_rows
    columns = jax.lax.rem(dividend, divisor) * merge + inner_columns
    return rows, columns


def interpolate_positions(table: Array, rows: Array, columns: Array, grids: Array) -> Array:
    """Resamples the learned square grid of positions to each frame's grid, bilinearly, corners aligned: float32
    [N, L, D]. Like in the public model, a table of fewer digits is resampled in float32, and the caller rounds once.

    table: [side^2, D], of any type. rows, columns: [N, L] patch coordinates. grids: [N, 2].
    """
    side = round(table.shape[0] ** 0.5)

    def taps(index: Array, size: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        source = (
            index.astype(jnp.float32) * (side - 1) / jnp.maximum(size - 1, 1)[:, None].astype(jnp.float32)
        )
        low = jnp.floor(source)
        fraction = source - low
        first = jnp.clip(low.astype(jnp.int32), 0, side - 1)
        return (first, jnp.minimum(first + 1, side - 1)), (1 - fraction, fraction)

    row_taps, row_weights = taps(rows, grids[:, 0])
    column_taps, column_weights = taps(columns, grids[:, 1])
    total = jnp.zeros((), jnp.float32)
    for row, row_weight in zip(row_taps, row_weights, strict=True):
        for column, column_weight in zip(column_taps, column_weights, strict=True):
            weight = (row_weight * column_weight)[..., None]
            total = total + take_rows(table, row * side + column).astype(jnp.float32) * weight
    return total


class PatchEmbedding(Linear):
    """Pixels of a patch to the tower's width: in the public model a 3-D convolution whose stride is its kernel.

    The public processor fills a still image's temporal patch with the image again and again. All frames of the kernel
    meet the same pixels then: their sum meets them once, at a fraction of the numbers and FLOPs.
    """

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        stddev = config.initializer_range
        super().__init__(
            config.patch_dim,
            config.hidden_size,
            use_bias=True,
            rngs=rngs,
            param_dtype=param_dtype,
            stddev=stddev,
        )
        self.channels, self.depth = config.in_channels, config.temporal_patch_size

    def __call__(self, pixels: Array) -> Array:
        """[..., patch_dim], or [..., patch_dim / temporal_patch_size] of stills -> [..., D]."""
        kernel = self.kernel[...]
        if pixels.shape[-1] == kernel.shape[0]:
            return super().__call__(pixels)
        # Added up in float32: a sum of bfloat16 kept as bfloat16 is rounded, a product with both frames is not.
        frames = kernel.astype(jnp.float32).reshape(self.channels, self.depth, -1, kernel.shape[-1])
        once = frames.sum(1).reshape(-1, kernel.shape[-1]).astype(pixels.dtype)
        return pixels @ once + self.bias[...].astype(pixels.dtype)


class VisionBlock(nnx.Module):
    """Pre-norm transformer block with attention inside a frame; ``stack`` copies of it on leading axes."""

    def __init__(
        self, config: VisionConfig, *, rngs: nnx.Rngs, param_dtype: DTypeLike, stack: tuple[int, ...]
    ) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        linear = linears(config.initializer_range, rngs, param_dtype, stack, use_bias=True)
        self.norm1 = LayerNorm(width, param_dtype=param_dtype, stack=stack)
        self.qkv = linear(width, 3 * width)
        self.proj = linear(width, width)
        self.norm2 = LayerNorm(width, param_dtype=param_dtype, stack=stack)
        self.fc1 = linear(width, inner)
        self.fc2 = linear(inner, width)
        self.heads = config.num_heads
        self.activation = config.hidden_act

    def __call__(self, x: Array, cos: Array, sin: Array, patches: Array, kernel: attention.Kernel) -> Array:
        """x: [N, L, D]; cos, sin: [N, L, head_dim / 2]; patches: [N] real patches of each frame."""
        qkv = by_group(self.qkv(self.norm1(x))).reshape(*x.shape[:2], 3, self.heads, -1)
        queries = rope.apply_rope(qkv[:, :, 0], cos, sin)
        keys = rope.apply_rope(qkv[:, :, 1], cos, sin)
        attended = attention.frames(queries, keys, qkv[:, :, 2], patches, kernel)
        x = x + by_group(self.proj(attended.reshape(x.shape)))
        hidden = by_group(self.fc1(self.norm2(x)))
        return x + by_group(self.fc2(ACTIVATIONS[self.activation](hidden)))


class PatchMerger(nnx.Module):
    """``merge**2`` neighbouring patches to one visual token of the decoder's width.

    ``norm_after_merge`` tells the DeepStack mergers (norm over the joined patches) from the last one (norm
    per patch).
    """

    def __init__(
        self,
        config: VisionConfig,
        *,
        norm_after_merge: bool,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike,
        stack: tuple[int, ...] = (),
    ) -> None:
        joined = config.hidden_size * config.spatial_merge_size**2
        linear = linears(config.initializer_range, rngs, param_dtype, stack, use_bias=True)
        norm_size = joined if norm_after_merge else config.hidden_size
        self.norm = LayerNorm(norm_size, param_dtype=param_dtype, stack=stack)
        self.fc1 = linear(joined, joined)
        self.fc2 = linear(joined, config.out_hidden_size)
        self.joined = joined
        self.norm_after_merge = norm_after_merge

    def __call__(self, x: Array) -> Array:
        """[*stack, n, D] -> [*stack, n / merge^2, out_hidden_size]."""
        joined_shape = (*x.shape[:-2], -1, self.joined)
        x = (
            self.norm(x.reshape(joined_shape))
            if self.norm_after_merge
            else self.norm(x).reshape(joined_shape)
        )
        groups = x.ndim - 2
        hidden = by_group(self.fc1(by_group(x, groups)), groups)
        return by_group(self.fc2(ACTIVATIONS["gelu"](hidden)), groups)


class VisionTower(nnx.Module):
    """Patch embedding, learned and rotary positions, blocks, mergers."""

    def __init__(
        self,
        config: VisionConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
        param_dtype: DTypeLike,
        remat: str = "none",
        kernel: attention.Kernel = attention.CHUNKED,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.remat = remat
        self.kernel = kernel
        taps = len(config.deepstack_visual_indexes)
        merger = functools.partial(PatchMerger, config, rngs=rngs, param_dtype=param_dtype)
        self.patch_embed = PatchEmbedding(config, rngs=rngs, param_dtype=param_dtype)
        table = (config.num_position_embeddings, config.hidden_size)
        self.pos_embed = normal_param(rngs, table, config.initializer_range, param_dtype)
        self.blocks = VisionBlock(config, rngs=rngs, param_dtype=param_dtype, stack=(config.depth,))
        self.merger = merger(norm_after_merge=False)
        if taps:
            self.deepstack_mergers = merger(norm_after_merge=True, stack=(taps,))

    def __call__(self, vision: VisionInputs) -> VisualFeatures:
        """Frames of uint8 patches [B, F, L, :] to features of V = F * L / merge^2 visual tokens per prompt."""
        config = self.config
        batch, frames, length, _ = vision.patches.shape
        grids = jnp.asarray(vision.grids, jnp.int32).reshape(-1, 2)
        patches = grids[:, 0] * grids[:, 1]
        rows, columns = patch_coordinates(grids, length, config.spatial_merge_size)
        cos, sin = rope.vision_rope(rows, columns, config.head_dim, config.rope_theta)

        levels = jnp.asarray(vision.patches).reshape(batch * frames, length, -1)
        x = by_group(self.patch_embed(normalise(levels, vision.scale, config, self.dtype)))
        x = x + interpolate_positions(self.pos_embed[...], rows, columns, grids).astype(x.dtype)

        taps = config.deepstack_visual_indexes
        # Blocks that are not tapped write into a spare slot: no branch, and the buffer is updated in place.
        slots = np.array([taps.index(i) if i in taps else len(taps) for i in range(config.depth)], np.int32)
        tapped = jnp.zeros((len(taps) + 1 if taps else 0, *x.shape), x.dtype)

        def block(
            layer: VisionBlock, carry: tuple[Array, Array], _: AnyArray, slot: AnyArray
        ) -> tuple[Array, Array]:
            x, tapped = carry
            x = layer(x, cos, sin, patches, self.kernel)
            if taps:
                tapped = jax.lax.dynamic_update_index_in_dim(tapped, x, slot, 0)
            return x, tapped

        x, tapped = scan_layers(self.blocks, block, (x, tapped), slots, remat=self.remat)

        embeddings = self.merger(x.reshape(-1, x.shape[-1])).reshape(batch, -1, config.out_hidden_size)
        if not taps:
            return VisualFeatures(embeddings=embeddings, deepstack=embeddings[:, None][:, :0])
        deepstack = self.deepstack_mergers(tapped[:-1].reshape(len(taps), -1, x.shape[-1]))
        deepstack = deepstack.reshape(len(taps), *embeddings.shape)
        return VisualFeatures(embeddings=embeddings, deepstack=jnp.swapaxes(deepstack, 0, 1))
