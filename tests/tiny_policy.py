"""A very small random Qwen3-VL and prompts for it, for tests of what is built on the model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs
from vcap_jax.models.qwen3_vl.model import Qwen3VL

VOCABULARY = 40
END = 1
CONFIG = {
    "model_type": "qwen3_vl",
    "tie_word_embeddings": True,
    "image_token_id": 5,
    "video_token_id": 6,
    "vision_start_token_id": 7,
    "vision_end_token_id": 8,
    "text_config": {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        "initializer_range": 0.4,
    },
    "vision_config": {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "patch_size": 2,
        "temporal_patch_size": 1,
        "spatial_merge_size": 2,
        "out_hidden_size": 16,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.4,
    },
}


def tiny_model(seed: int = 0, *, key_heads: int = 1, **settings: Any) -> Qwen3VL:
    """Float32, random weights large enough that captions differ. settings: of ``Qwen3VL``."""
    config = CONFIG | {"text_config": CONFIG["text_config"] | {"num_key_value_heads": key_heads}}
    return Qwen3VL(Qwen3VLConfig.from_dict(config), rngs=nnx.Rngs(seed), dtype=jnp.float32, **settings)


def tiny_prompts(groups: int, seed: int = 0, *, tokens: int = 12) -> PromptBatch:
    """Prompts of one 4 x 4-patch picture (4 visual tokens) and a few words, of different lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.array([tokens - (b % 3) for b in range(groups)], np.int32)
    ids = rng.integers(10, VOCABULARY, (groups, tokens)).astype(np.int32)
    visual_index = np.full((groups, tokens), -1, np.int32)
    visual_index[:, 1:5] = np.arange(4)
    ids[:, 1:5] = 5
    positions = np.broadcast_to(np.arange(tokens, dtype=np.int32), (groups, 3, tokens)).copy()
    patches = rng.integers(0, 256, (groups, 1, 16, 3 * 2 * 2), np.uint8)
    grids = np.full((groups, 1, 2), 4, np.int32)
    return PromptBatch(ids, positions, lengths, visual_index, VisionInputs(patches, grids))


def some_groups(tree: Any, start: int, stop: int) -> Any:
    """Groups ``start`` to ``stop`` of any of the batch types."""
    return jax.tree.map(lambda x: x[start:stop], tree)
