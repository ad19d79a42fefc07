"""The shape of the embedded world's tiny Qwen3-VL, and where the trained one lies.

The same architecture, patch geometry and file formats as the published checkpoints, only narrow and shallow. A visual
token of it covers 32 x 32 pixels: 16 of them are a picture, 54 a clip.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vcap_jax.models.qwen3_vl.processing.settings import ImageSettings, VideoSettings
from vcap_jax.system.json_values import JsonDict
from vcap_jax.world.scenes import IMAGE_EDGE, VIDEO_EDGE
from vcap_jax.world.vocabulary import VIDEO_FPS, VIDEO_FRAMES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BACKBONE_FOLDER = Path(__file__).resolve().parent / "backbone"
"""The trained backbone in Hugging Face format."""

IMAGE_SETTINGS = ImageSettings(min_pixels=64 * 64, max_pixels=IMAGE_EDGE**2)
"""A scene's pixels are taken as they are; a photograph is brought down to as many."""
VIDEO_SETTINGS = VideoSettings(
    min_pixels=2 * 64 * 64,
    max_pixels=VIDEO_FRAMES * VIDEO_EDGE**2,
    fps=float(VIDEO_FPS),
    min_frames=2,
    max_frames=VIDEO_FRAMES,
)
"""The frames of a clip as they are; ``max_pixels`` is the whole video's."""


def backbone_config(tokenizer: PreTrainedTokenizerBase) -> JsonDict:
    """config.json of the tiny Qwen3-VL for a tokenizer made by ``vcap_jax.world.tokenizer``."""

    def token(name: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(name))

    text: JsonDict = {
        "model_type": "qwen3_vl_text",
        "vocab_size": len(tokenizer),
        "hidden_size": 96,
        "intermediate_size": 224,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # the narrowest that vLLM's attention kernels take
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
    }
    vision: JsonDict = {
        "model_type": "qwen3_vl",
        "depth": 3,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_heads": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": 96,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.02,
    }
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
        "text_config": text,
        "vision_config": vision,
    }
