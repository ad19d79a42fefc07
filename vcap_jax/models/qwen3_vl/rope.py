"""Rotary positions: angles for text (M-RoPE) and for vision patches, and their application.

Angles, cosines and sines are float32 whatever the compute type: at bfloat16 a position beyond 256 is already
rounded. Matches the rotary embeddings of the public Qwen3-VL implementation (transformers 5.23).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def inverse_frequencies(dim: int, theta: float) -> np.ndarray:
    """[dim / 2] float32: ``theta ** (-2 i / dim)``."""
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return (1.0 / np.power(np.float32(theta), exponent)).astype(np.float32)


def mrope_axes(half: int, section: tuple[int, ...]) -> np.ndarray:
    """Which position axis drives each rotary frequency: [half] int32 of 0 (time), 1 (height), 2 (width).

    Interleaved M-RoPE deals the frequencies out as t, h, w, t, h, w, ...; once an axis has had its
    ``section`` the rest falls to time.
    """
    index = np.arange(half)
    axes = np.zeros(half, np.int32)
    for axis in (1, 2):
        axes[(index % 3 == axis) & (index < 3 * section[axis])] = axis
    return axes


def mrope(positions: Array, head_dim: int, theta: float, section: tuple[int, ...]) -> tuple[Array, Array]:
    """Cosines and sines of text tokens: two float32 arrays [B, S, head_dim / 2].

    positions: [B, 3, S] int32 positions on (time, height, width). head_dim, theta, section: of ``TextConfig``.
    """
    half = head_dim // 2
    chosen = positions[:, mrope_axes(half, section), :]  # [B, half, S]
    angles = jnp.swapaxes(chosen, 1, 2).astype(jnp.float32) * inverse_frequencies(head_dim, theta)
    return jnp.cos(angles), jnp.sin(angles)


def text_rope(positions: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines where the three axes agree (generated tokens): [...] -> two [..., head_dim / 2]."""
    angles = positions[..., None].astype(jnp.float32) * inverse_frequencies(head_dim, theta)
    return jnp.cos(angles), jnp.sin(angles)


def vision_rope(rows: Array, columns: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines of patches, two float32 arrays [N, L, head_dim / 2]: half of the frequencies turns with the
    row, half with the column. rows, columns: [N, L] int32 patch coordinates."""
    frequencies = inverse_frequencies(head_dim // 2, theta)
    angles = [axis[..., None].astype(jnp.float32) * frequencies for axis in (rows, columns)]
    joined = jnp.concatenate(angles, axis=-1)
    return jnp.cos(joined), jnp.sin(joined)


def apply_rope(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates the pairs (x_i, x_{i + head_dim/2}) of every head.

    x: [..., heads, head_dim]. cos, sin: [..., head_dim / 2], broadcast over heads.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
