"""What is read from a ``config.json`` alike, whatever the family: files, sections, rotary settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from vcap_jax.models.errors import CheckpointError
from vcap_jax.system.json_values import JsonObject

Config = TypeVar("Config")

TOP_FIELDS = (
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "tie_word_embeddings",
)


def read_config(path: str | Path, parse: Callable[[JsonObject], Config]) -> Config:
    """What ``parse`` makes of a ``config.json``, given its path or the folder that holds it.

    Raises CheckpointError for what is no JSON or what ``parse`` refuses (ValueError), FileNotFoundError without one.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"no model configuration at {file}; expected a folder with a config.json")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{file} is not valid JSON ({error}): restore it from the checkpoint"
        ) from error
    try:
        return parse(values)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error


def sections(values: JsonObject, model_type: str) -> tuple[JsonObject, JsonObject, dict[str, Any]]:
    """The decoder's section of a ``config.json``, the tower's, and what stands above both.

    Raises ValueError for another model_type, quantised weights, and a section that is not there.
    """
    found = values.get("model_type", model_type)
    if found != model_type:
        raise ValueError(f"config: model_type is {found!r}; only dense {model_type!r} models are implemented")
    if values.get("quantization_config"):
        raise ValueError("config: the weights are quantised; take the checkpoint of this size in bfloat16")
    text, vision = _section(values, "text_config"), _section(values, "vision_config")
    top: dict[str, Any] = {name: values[name] for name in TOP_FIELDS if values.get(name) is not None}
    top.setdefault("tie_word_embeddings", bool(text.get("tie_word_embeddings", False)))
    return text, vision, top


def _section(values: JsonObject, name: str) -> JsonObject:
    section = values.get(name)
    if not isinstance(section, Mapping):
        raise ValueError(f"config: {name!r} is missing or not a dictionary")
    return section


def known_fields(cls: type, values: JsonObject) -> dict[str, Any]:
    """Keyword arguments of a configuration; what is in them only its constructor finds out."""
    names = {item.name for item in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names and value is not None}


def rope_settings(values: Mapping[str, Any], section: str, rope_type: str) -> dict[str, Any]:
    """Merge the spellings of the rotary settings; refuse scalings that would silently change positions."""
    merged: dict[str, Any] = {}
    if values.get("rope_theta") is not None:
        merged["rope_theta"] = values["rope_theta"]
    for key in ("rope_scaling", "rope_parameters"):
        merged.update({k: v for k, v in (values.get(key) or {}).items() if v is not None})
    # "mrope" is how some early exports spell an unscaled rotary embedding.
    found = merged.get("rope_type", merged.get("type", rope_type))
    if found not in (rope_type, "default", "mrope"):
        raise ValueError(
            f"{section}: rope_type {found!r} is not implemented; only unscaled rotary positions are"
        )
    if merged.get("mrope_interleaved") is False:
        raise ValueError(f"{section}: mrope_interleaved is false; only interleaved M-RoPE is implemented")
    return merged
