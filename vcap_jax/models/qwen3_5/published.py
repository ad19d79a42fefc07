"""The configurations of the published dense Qwen3.5 checkpoints. A run is planned from these before any weights are
there. Qwen3.6-27B and 3.8-27B have the sizes of 27B.

Tokenizer and generation entries are left out.
"""

from __future__ import annotations

from vcap_jax.system.json_values import JsonObject

_TOWERS: dict[int, JsonObject] = {
    12: {"depth": 12, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12},
    24: {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16},
    27: {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16},
}


def _factory(
    *, width: int, inner: int, layers: int, heads: tuple[int, int], linear: int, tied: bool, vision: int
) -> JsonObject:
    return {
        "model_type": "qwen3_5",
        "image_token_id": 248056,
        "video_token_id": 248057,
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
        "tie_word_embeddings": tied,
        "text_config": {
            "model_type": "qwen3_5_text",
            "eos_token_id": 248044,
            "vocab_size": 248320,
            "hidden_size": width,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1],
            "head_dim": 256,
            "hidden_act": "silu",
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-06,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": linear,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [11, 11, 10],
            },
        },
        "vision_config": {
            "model_type": "qwen3_5",
            **_TOWERS[vision],
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "deepstack_visual_indexes": [],
            "num_position_embeddings": 2304,
            "out_hidden_size": width,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


CONFIGS: dict[str, JsonObject] = {
    "0.8B": _factory(width=1024, inner=3584, layers=24, heads=(8, 2), linear=16, tied=True, vision=12),
    "2B": _factory(width=2048, inner=6144, layers=24, heads=(8, 2), linear=16, tied=True, vision=24),
    "4B": _factory(width=2560, inner=9216, layers=32, heads=(16, 4), linear=32, tied=True, vision=24),
    "9B": _factory(width=4096, inner=12288, layers=32, heads=(16, 4), linear=32, tied=False, vision=27),
    "27B": _factory(width=5120, inner=17408, layers=64, heads=(24, 4), linear=48, tied=False, vision=27),
}

BILLIONS = {"0.8B": 0.85, "2B": 2.21, "4B": 4.54, "9B": 9.41, "27B": 27.36}
"""Parameters of each, without the layer that guesses several tokens ahead."""
