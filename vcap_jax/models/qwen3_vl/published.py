"""The configurations of the published dense Qwen3-VL checkpoints, as their config.json files state them.

Tokenizer and generation entries are left out. A run is planned from these before any weights are there.
"""

from __future__ import annotations

from vcap_jax.system.json_values import JsonObject


def _factory(
    *, width: int, inner: int, layers: int, heads: int, tied: bool, large_vision: bool
) -> JsonObject:
    vision: JsonObject = (
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}
        if large_vision
        else {
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "deepstack_visual_indexes": [5, 11, 17],
        }
    )
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": 151655,
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "dtype": "bfloat16",
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": width,
            "initializer_range": 0.02,
            "intermediate_size": inner,
            "max_position_embeddings": 262144,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
            },
            "rope_theta": 5000000,
            "use_cache": True,
            "vocab_size": 151936,
            **({"tie_word_embeddings": True} if tied else {}),
        },
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 151656,
        "vision_config": {
            **vision,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "initializer_range": 0.02,
            "model_type": "qwen3_vl",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": width,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    }


CONFIGS: dict[str, JsonObject] = {
    "2B": _factory(width=2048, inner=6144, layers=28, heads=16, tied=True, large_vision=False),
    "4B": _factory(width=2560, inner=9728, layers=36, heads=32, tied=True, large_vision=False),
    "8B": _factory(width=4096, inner=12288, layers=36, heads=32, tied=False, large_vision=True),
    "32B": _factory(width=5120, inner=25600, layers=64, heads=64, tied=False, large_vision=True),
}

BILLIONS = {"2B": 2.13, "4B": 4.44, "8B": 8.77, "32B": 33.4}
"""Parameters of each checkpoint as its public page counts them."""
