"""What is read from a ``config.json`` alike, whatever the family: files, sections, rotary settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from vcap_jax.models.errors import CheckpointError
from vcap_jax.system.json_values import JsonObject, read_json_object

Config = TypeVar("Config")

TOP_FIELDS = (
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "tie_word_embeddings",
)
_QUANTISED = ("quantization_config", "compression_config")


def read_config(path: str | Path, parse: Callable[[JsonObject], Config]) -> Config:
    """What ``parse`` makes of a ``config.json``, given its path or the folder that holds it.

    Raises CheckpointError for what is no JSON or what ``parse`` refuses (ValueError), FileNotFoundError without one.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"no model configuration at {file}; expected a folder with a config.json")
    values = read_json_object(file, CheckpointError, "restore it from the checkpoint")
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
    text, vision = _section(values, "text_config"), _section(values, "vision_config")
    # Tools for quantising name it "compression_config" too, and write it where the part that they quantised is.
    if any(part.get(key) for part in (values, text, vision) for key in _QUANTISED):
        raise ValueError("config: the weights are quantised; take the checkpoint of this size in bfloat16")
    top: dict[str, Any] = {name: values[name] for name in TOP_FIELDS if values.get(name) is not None}
    top.setdefault("tie_word_embeddings", bool(text.get("tie_word_embeddings", False)))
    return text, vision, top


def _section(values: JsonObject, name: str) -> JsonObject:
    section = values.get(name)
    if not isinstance(section, Mapping):
        raise ValueError(f"config: {name!r} is missing or not a dictionary")
    return section


def typed(cls: type, fields: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Keyword arguments of a configuration in the types that it states: a list as a tuple, a whole number as a float.

    Raises ValueError for one of another type, by its name in ``section``.
    """
    hints = get_type_hints(cls)
    found = {}
    for name, value in fields.items():
        try:
            found[name] = TypeAdapter(hints[name]).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise ValueError(f"{section}: {name} is {value!r}: {problem}") from error
    return found


def known_fields(cls: type, values: JsonObject, section: str, rope_type: str = "default") -> dict[str, Any]:
    """Keyword arguments of a configuration, as they stand in the file; ``typed`` finds out what they are. A list of
    stop tokens is left out: it belongs to generation_config.json."""
    names = {item.name for item in dataclasses.fields(cls)}
    return {
        name: value
        for name, value in {**values, **_rope_settings(values, section, rope_type)}.items()
        if name in names
        and value is not None
        and not (name.endswith("_token_id") and isinstance(value, Sequence))
    }


def _rope_settings(values: Mapping[str, Any], section: str, rope_type: str) -> dict[str, Any]:
    """The rotary settings, by whichever of their spellings the public class reads; refuse scalings that would silently
    change positions."""
    merged: dict[str, Any] = {}
    if values.get("rope_theta") is not None:
        merged["rope_theta"] = values["rope_theta"]
    for key in ("rope_scaling", "rope_parameters"):
        settings = values.get(key) or {}
        if not isinstance(settings, Mapping):
            raise ValueError(f"{section}: {key} is {settings!r}, not a dictionary")
        if settings:  # the older spelling takes the newer one's place
            merged.update({k: v for k, v in settings.items() if v is not None})
            break
    # "mrope" is how some early exports spell an unscaled rotary embedding.
    found = merged.get("rope_type", merged.get("type", rope_type))
    if found not in (rope_type, "default", "mrope"):
        raise ValueError(
            f"{section}: rope_type {found!r} is not implemented; only unscaled rotary positions are"
        )
    if merged.get("mrope_interleaved") is False:
        raise ValueError(f"{section}: mrope_interleaved is false; only interleaved M-RoPE is implemented")
    return merged
