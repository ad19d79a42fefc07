"""Configuration of a Qwen3.5 model, read from and written to a checkpoint's own ``config.json``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from vcap_jax.models.qwen3_vl.config import (
    TwoTowers,
    VisionConfig,
    check_decoder,
    require_multiple,
    vision_from_dict,
    vision_to_dict,
)
from vcap_jax.models.qwen3_vl.config_json import (
    TOP_FIELDS,
    known_fields,
    sections,
    typed,
)
from vcap_jax.system.json_values import JsonDict, JsonObject

LINEAR, FULL = "linear_attention", "full_attention"
"""Kinds of layers, as ``layer_types`` names them."""


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """The decoder. Names and defaults are those of the public ``text_config``.

    Of ``full_attention_interval`` layers the last attends to all tokens, the others are gated delta rules. Rotary
    positions turn the first ``partial_rotary_factor`` of a head; ``mrope_section``: see ``qwen3_vl.rope.mrope``.
    """

    vocab_size: int = 248_320
    hidden_size: int = 4096
    intermediate_size: int = 12_288
    num_hidden_layers: int = 32
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_act: str = "silu"
    max_position_embeddings: int = 32_768
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    partial_rotary_factor: float = 0.25
    mrope_section: tuple[int, ...] = (11, 11, 10)
    full_attention_interval: int = 4
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        check_decoder(self)
        require_multiple(self, "linear_num_value_heads", "linear_num_key_heads")
        require_multiple(self, "num_hidden_layers", "full_attention_interval")
        if self.full_attention_interval < 2:
            raise ValueError(
                "TextConfig.full_attention_interval is 1: a model without linear attention is none of these"
            )
        if not 0 < self.rotary_dim <= self.head_dim or self.rotary_dim % 2:
            raise ValueError(
                f"TextConfig.partial_rotary_factor ({self.partial_rotary_factor}) of head_dim ({self.head_dim}) must "
                "be an even number of dimensions (rotary pairs)"
            )

    @property
    def rotary_dim(self) -> int:
        """Of a head's dimensions those that positions turn."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The kind of each layer."""
        return ((LINEAR,) * (self.full_attention_interval - 1) + (FULL,)) * self.blocks

    @property
    def blocks(self) -> int:
        """How often the pattern of layers is repeated."""
        return self.num_hidden_layers // self.full_attention_interval

    def numbers_of(self, kind: str) -> tuple[int, ...]:
        """Which layers are of a kind, from 0."""
        return tuple(i for i, found in enumerate(self.layer_types) if found == kind)

    @property
    def linear_channels(self) -> int:
        """Of a gated delta rule those that go through the convolution: queries, keys, values."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim


@dataclass(frozen=True, kw_only=True)
class Qwen35Config(TwoTowers):
    """A whole model: both towers, the placeholder tokens, and whether the head is the embedding table."""

    text: TextConfig = field(default_factory=TextConfig)
    vision: VisionConfig = field(
        default_factory=lambda: VisionConfig(out_hidden_size=4096, deepstack_visual_indexes=())
    )
    image_token_id: int = 248_056
    video_token_id: int = 248_057
    vision_start_token_id: int = 248_053
    vision_end_token_id: int = 248_054
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        self.check_widths()
        if self.vision.deepstack_visual_indexes:
            raise ValueError(
                "vision_config.deepstack_visual_indexes: Qwen3.5 takes no features between layers"
            )

    @classmethod
    def from_dict(cls, values: JsonObject) -> Qwen35Config:
        """See ``TwoTowers``."""
        text, vision, top = sections(values, "qwen3_5")
        taps = vision.get("deepstack_visual_indexes") or []
        tower = vision_from_dict({**vision, "deepstack_visual_indexes": taps})
        return cls(text=_text_from_dict(text), vision=tower, **typed(cls, top, "config"))

    def to_dict(self) -> JsonDict:
        """See ``TwoTowers``."""
        text = {name: value for name, value in dataclasses.asdict(self.text).items() if value is not None}
        text["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": text.pop("rope_theta"),
            "partial_rotary_factor": text.pop("partial_rotary_factor"),
            "mrope_interleaved": True,
            "mrope_section": list(text.pop("mrope_section")),
        }
        text["layer_types"] = list(self.text.layer_types)
        # For vLLM: what memories are kept in, and whether there is a head to be read, which it asks the decoder for.
        text |= {"mamba_ssm_dtype": "float32", "tie_word_embeddings": self.tie_word_embeddings}
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": {"model_type": "qwen3_5_text", **text},
            "vision_config": {"model_type": "qwen3_5", **vision_to_dict(self.vision)},
            **{name: getattr(self, name) for name in TOP_FIELDS},
        }


def _text_from_dict(values: JsonObject) -> TextConfig:
    if values.get("attention_bias"):
        raise ValueError("text_config: attention_bias is true, which is not implemented")
    if values.get("attn_output_gate") is False:
        raise ValueError("text_config: attn_output_gate is false, which is not implemented")
    fields = known_fields(TextConfig, values, "text_config")
    kinds: list[object] = list(values.get("layer_types") or [])  # type: ignore[arg-type]
    if FULL in kinds:
        fields["full_attention_interval"] = kinds.index(FULL) + 1
    config = TextConfig(**typed(TextConfig, fields, "text_config"))
    if kinds and kinds != list(config.layer_types):
        raise ValueError(
            f"text_config: layer_types is {kinds}; only {FULL} as the last of every few layers and {LINEAR} "
            "as all others is implemented"
        )
    return config
