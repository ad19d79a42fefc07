"""The largest prompt that a visual budget lets in, which a run is planned for."""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np

from vcap_jax.models.buckets import Buckets
from vcap_jax.models.family import LargestPrompt, VisualBudget
from vcap_jax.models.qwen3_vl.config import VisionConfig
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch
from vcap_jax.models.qwen3_vl.processing import collate

TEXT_TOKENS = 128
"""Of a prompt beside its visual tokens: the chat template and the request, generously."""
TIMESTAMP_TOKENS = 12
"""Of a video frame: its timestamp and the marks around it."""


def largest_prompt(
    config: VisionConfig, modality: Literal["image", "video"], budget: VisualBudget
) -> LargestPrompt:
    """See ``ModelFamily.largest_prompt``."""
    merge = config.spatial_merge_size**2
    if modality == "image":
        assert budget.max_pixels is not None
        frames, patches = 1, budget.max_pixels // config.patch_size**2 // merge * merge
        depth, text = 1, TEXT_TOKENS
    else:
        assert budget.max_frames is not None
        assert budget.max_frame_tokens is not None
        frames = -(-budget.max_frames // config.temporal_patch_size)
        patches = budget.max_frame_tokens * merge
        depth, text = config.temporal_patch_size, TEXT_TOKENS + TIMESTAMP_TOKENS * frames
    visual = frames * patches // merge
    return LargestPrompt(
        tokens=visual + text,
        frames=frames,
        patches=patches,
        visual=visual,
        patch_numbers=config.in_channels * depth * config.patch_size**2,
    )


def abstract_prompt(
    config: VisionConfig, largest: LargestPrompt, groups: int, buckets: Buckets
) -> PromptBatch:
    """See ``ModelFamily.abstract_prompt``."""
    merge = config.spatial_merge_size
    visual = np.zeros(largest.tokens, bool)
    visual[: largest.visual] = True
    frame = np.zeros((largest.patches, largest.patch_numbers), np.uint8)
    one = EncodedPrompt(
        tokens=np.zeros(largest.tokens, np.int32),
        positions=np.zeros((3, largest.tokens), np.int32),
        frames=(frame,) * largest.frames,
        grids=np.full((largest.frames, 2), (merge, largest.patches // merge), np.int32),
        is_visual=visual,
    )
    batch = collate([one], buckets, merge, batch_size=1, names=["the largest prompt"])
    abstract: PromptBatch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((groups, *x.shape[1:]), x.dtype), batch
    )
    return abstract
