"""Configuration of a Qwen3-VL model, read from and written to a checkpoint's own ``config.json``.

Two spellings of the rotary settings are in circulation: ``rope_theta`` beside a ``rope_scaling`` dictionary
(the published checkpoints, transformers 4.57) and one ``rope_parameters`` dictionary (transformers 5). Both
are read; the first is written, because every consumer understands it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from vcap_jax.models.qwen3_vl.config_json import (
    TOP_FIELDS,
    known_fields,
    read_config,
    sections,
    typed,
)
from vcap_jax.system.json_values import JsonDict, JsonObject

ACTIVATION_NAMES = ("gelu", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")
"""Values of ``hidden_act`` that ``layers.ACTIVATIONS`` implements."""

DEFAULT_VISION_ROPE_THETA = 10_000.0


def require_positive(owner: object) -> None:
    """Raises ValueError for a whole number of a configuration that is not positive."""
    for name in (name for name, kind in type(owner).__annotations__.items() if kind == "int"):
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{type(owner).__name__}.{name} must be a positive integer, got {value!r}")


def require_activation(owner: object, name: str) -> None:
    """Raises ValueError for a ``hidden_act`` that is not implemented."""
    if name not in ACTIVATION_NAMES:
        raise ValueError(
            f"{type(owner).__name__}.hidden_act {name!r} is not implemented; "
            f"known: {', '.join(ACTIVATION_NAMES)}"
        )


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """The decoder. Names and defaults are those of the public ``text_config``.

    ``mrope_section`` counts the rotary frequencies given to (temporal, height, width); see ``rope.mrope``.
    """

    vocab_size: int = 151_936
    hidden_size: int = 4096
    intermediate_size: int = 22_016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 128_000
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    rope_theta: float = 500_000.0
    mrope_section: tuple[int, ...] = (24, 20, 20)
    attention_bias: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        check_decoder(self)
        if self.head_dim % 2:
            raise ValueError(f"TextConfig.head_dim must be even (rotary pairs), got {self.head_dim}")

    @property
    def rotary_dim(self) -> int:
        """Of a head's dimensions those that positions turn: all."""
        return self.head_dim


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """The vision tower. Names and defaults are those of the public ``vision_config``.

    ``deepstack_visual_indexes`` are the blocks (from 0) after which features are taken; the k-th of them is
    added to the hidden states after decoder layer k.
    """

    depth: int = 27
    hidden_size: int = 1152
    hidden_act: str = "gelu_pytorch_tanh"
    intermediate_size: int = 4304
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 16
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    out_hidden_size: int = 3584
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    initializer_range: float = 0.02
    rope_theta: float = DEFAULT_VISION_ROPE_THETA

    def __post_init__(self) -> None:
        require_positive(self)
        require_activation(self, self.hidden_act)
        if self.hidden_size % self.num_heads or self.head_dim % 4:
            raise ValueError(
                f"VisionConfig.hidden_size ({self.hidden_size}) must be num_heads ({self.num_heads}) times a "
                "multiple of 4 (rotary pairs for rows and for columns)"
            )
        if self.position_grid**2 != self.num_position_embeddings:
            raise ValueError(
                f"VisionConfig.num_position_embeddings must be a square, got {self.num_position_embeddings}"
            )
        taps = self.deepstack_visual_indexes
        if list(taps) != sorted(set(taps)) or any(not 0 <= tap < self.depth for tap in taps):
            raise ValueError(
                "VisionConfig.deepstack_visual_indexes must increase and lie in "
                f"0..{self.depth - 1}, got {list(taps)}"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def position_grid(self) -> int:
        """Side of the square grid of learned positions."""
        return math.isqrt(self.num_position_embeddings)

    @property
    def patch_dim(self) -> int:
        """Numbers in one flattened patch: channels x temporal_patch x patch x patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


class TextSizes(Protocol):
    """What is asked of a decoder's configuration, whatever its layers are."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...
    @property
    def rotary_dim(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def mrope_section(self) -> tuple[int, ...]: ...
    @property
    def initializer_range(self) -> float: ...
    @property
    def eos_token_id(self) -> int | None: ...


def check_decoder(text: TextSizes) -> None:
    """Raises ValueError for sizes that no decoder can have."""
    require_positive(text)
    require_activation(text, text.hidden_act)
    require_multiple(text, "num_attention_heads", "num_key_value_heads")
    if len(text.mrope_section) != 3 or min(text.mrope_section) < 0:
        raise ValueError(f"TextConfig.mrope_section needs three counts >= 0, got {text.mrope_section}")


def require_multiple(text: TextSizes, several: str, of: str) -> None:
    """Raises ValueError for a number that is no multiple of another."""
    if getattr(text, several) % getattr(text, of):
        raise ValueError(
            f"TextConfig.{several} ({getattr(text, several)}) must be a multiple of {of} ({getattr(text, of)})"
        )


class TwoTowers:
    """What the configurations of models with this vision tower have in common."""

    text: TextSizes
    vision: VisionConfig
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    tie_word_embeddings: bool

    @classmethod
    @abstractmethod
    def from_dict(cls, values: JsonObject) -> Self:
        """Build from the parsed ``config.json``; keys that do not shape the model are ignored.

        Raises ValueError: another family's configuration, one of quantised weights, or one with something that is not
        implemented.
        """

    @abstractmethod
    def to_dict(self) -> JsonDict:
        """The ``config.json`` of this model, in the spelling of the published checkpoints."""

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Read ``config.json``, given its path or the folder that holds it."""
        return read_config(path, cls.from_dict)

    def check_widths(self) -> None:
        """Raises ValueError for a tower whose features are not as wide as the decoder."""
        if self.vision.out_hidden_size != self.text.hidden_size:
            raise ValueError(
                f"vision_config.out_hidden_size ({self.vision.out_hidden_size}) must equal "
                f"text_config.hidden_size ({self.text.hidden_size})"
            )

    @property
    def head_sizes(self) -> dict[str, int]:
        """Numbers of an attention head in each tower."""
        return {"text": self.text.head_dim, "vision": self.vision.head_dim}

    @property
    def end_token_id(self) -> int | None:
        """The token that ends a caption, if the configuration names it."""
        return self.text.eos_token_id

    @property
    def special_token_ids(self) -> tuple[int, ...]:
        """Those a caption may not contain, as far as the configuration names them."""
        return (
            self.image_token_id,
            self.video_token_id,
            self.vision_start_token_id,
            self.vision_end_token_id,
        )


@dataclass(frozen=True, kw_only=True)
class Qwen3VLConfig(TwoTowers):
    """A whole model: both towers, the placeholder tokens, and whether the head is the embedding table."""

    text: TextConfig = field(default_factory=TextConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    image_token_id: int = 151_655
    video_token_id: int = 151_656
    vision_start_token_id: int = 151_652
    vision_end_token_id: int = 151_653
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        self.check_widths()
        taps = len(self.vision.deepstack_visual_indexes)
        if taps > self.text.num_hidden_layers:
            raise ValueError(
                f"vision_config.deepstack_visual_indexes names {taps} blocks, but the decoder has only "
                f"{self.text.num_hidden_layers} layers to receive them"
            )

    @classmethod
    def from_dict(cls, values: JsonObject) -> Qwen3VLConfig:
        """See ``TwoTowers``."""
        text, vision, top = sections(values, "qwen3_vl")
        return cls(text=_text_from_dict(text), vision=vision_from_dict(vision), **typed(cls, top, "config"))

    def to_dict(self) -> JsonDict:
        """See ``TwoTowers``."""
        text = {name: value for name, value in dataclasses.asdict(self.text).items() if value is not None}
        section = text.pop("mrope_section")
        text["rope_scaling"] = {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": list(section),
        }
        if self.tie_word_embeddings:
            # transformers 4.57 asks the decoder, and would make up a head.
            text["tie_word_embeddings"] = True
        return {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "text_config": {"model_type": "qwen3_vl_text", **text},
            "vision_config": {"model_type": "qwen3_vl", **vision_to_dict(self.vision)},
            **{name: getattr(self, name) for name in TOP_FIELDS},
        }


def _text_from_dict(values: JsonObject) -> TextConfig:
    fields = known_fields(TextConfig, values, "text_config")
    if values.get("num_key_value_heads") is None and "num_attention_heads" in fields:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    return TextConfig(**typed(TextConfig, fields, "text_config"))


def vision_from_dict(values: JsonObject) -> VisionConfig:
    """The tower of a ``vision_config``. Raises ValueError for one that is not implemented."""
    fields = known_fields(VisionConfig, values, "vision_config", "axial")
    for name in ("patch_size", "temporal_patch_size"):
        value = fields.get(name)
        if isinstance(value, Sequence):
            if len(set(value)) != 1:
                raise ValueError(f"vision_config.{name}: only equal sides are implemented, got {list(value)}")
            fields[name] = value[0]
    return VisionConfig(**typed(VisionConfig, fields, "vision_config"))


def vision_to_dict(config: VisionConfig) -> JsonDict:
    """The ``vision_config`` of a tower but for its model_type."""
    values = dataclasses.asdict(config)
    values["deepstack_visual_indexes"] = list(config.deepstack_visual_indexes)
    if values["rope_theta"] == DEFAULT_VISION_ROPE_THETA:
        del values["rope_theta"]  # published configurations do not name it
    else:
        values["rope_parameters"] = {"rope_type": "axial", "rope_theta": values.pop("rope_theta")}
    return values
