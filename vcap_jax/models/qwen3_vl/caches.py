"""Keys and values that decoding keeps: of the prompts, and of the captions.

Letters in shapes: as in ``vcap_jax.models.qwen3_vl.two_towers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from typing_extensions import TypeVar

from vcap_jax.models.qwen3_vl.config import TextSizes

Array = jax.Array

Leaf = TypeVar("Leaf", default=Array)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PromptCache(Generic[Leaf]):
    """What decoding needs of the prompts; never written to while it decodes.

    keys: an array [B, K, d, P] per layer; values: [B, K, P, d]. lengths: [B] int32 real tokens. next_position: [B]
    int32 M-RoPE position of the first caption token.
    """

    keys: tuple[Leaf, ...]
    values: tuple[Leaf, ...]
    lengths: Leaf
    next_position: Leaf


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CaptionCache(Generic[Leaf]):
    """Keys [B G K, d, T] and values [B G K, T, d] of the captions, an array per layer; donate it. Rows lie as in
    ``kernels.attention.decode``.

    Groups, captions and heads are one axis, which a product takes as it is. Were they apart, XLA would join them by a
    reshape between the write of a token and its readers, fuse the write into each reader, and give each a copy of the
    cache to write into.
    """

    keys: tuple[Leaf, ...]
    values: tuple[Leaf, ...]


def empty_caches(
    config: TextSizes,
    layers: int,
    dtype: DTypeLike,
    *,
    groups: int,
    prompt_tokens: int,
    captions: int,
    caption_tokens: int,
) -> tuple[PromptCache, CaptionCache]:
    """Caches of zeros for so many layers of attention. dtype: of the computation."""
    heads, dim = config.num_key_value_heads, config.head_dim
    rows = groups * captions * heads

    def arrays(*shape: int) -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, dtype) for _ in range(layers))

    numbers = jnp.zeros((groups,), jnp.int32)
    prompt = PromptCache(
        arrays(groups, heads, dim, prompt_tokens), arrays(groups, heads, prompt_tokens, dim), numbers, numbers
    )
    return prompt, CaptionCache(arrays(rows, dim, caption_tokens), arrays(rows, caption_tokens, dim))
