"""What a checkpoint folder says about itself: enough to write the command line and to see what would fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonObject, JsonValue, as_object, as_text, read_json_object

_MODEL_TYPES = ("qwen3_vl", "qwen3_vl_moe")
_RESTORE = "restore it from the checkpoint"
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
# vLLM reads them after its start, and the error that it ends with does not name the file.
_READ_BY_VLLM = (
    *_TOKENIZER_FILES,
    "tokenizer_config.json",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)
_DEFAULT_MIN_PIXELS = {"image": 65_536, "video": 4_096}  # of the published checkpoints
_MOST_HEADER = 100_000_000  # the safetensors format's own limit, in bytes
_KEY_VALUE_BYTES = 2  # keys and values are kept in 16 bits unless vLLM is told otherwise


class CheckpointError(VCapError, ValueError):
    """The folder cannot be served; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What serving needs to know about a Qwen3-VL checkpoint; by default what all published ones have, and 0 for what
    differs among them.

    weight_bytes: of all its safetensors. heads, key_value_heads, vision_heads: attention heads.
    positions: longest sequence the model was made for.
    patch, merge, temporal_patch: pixels of a patch's side, patches of a merged token's side, frames per patch.
    image_min_pixels, video_min_pixels: lower bounds of the preprocessor files, which budgets leave alone.
    video_token_id: the placeholder that stands once in the prompt for every visual token of a video.
    """

    weight_bytes: int = 0
    layers: int = 0
    heads: int = 0
    key_value_heads: int = 0
    head_dim: int = 0
    vision_heads: int = 0
    positions: int = 262_144
    patch: int = 16
    merge: int = 2
    temporal_patch: int = 2
    image_min_pixels: int = _DEFAULT_MIN_PIXELS["image"]
    video_min_pixels: int = _DEFAULT_MIN_PIXELS["video"]
    video_token_id: int = 151_656

    @property
    def pixels_per_token(self) -> int:
        """Pixels behind one visual token."""
        return (self.patch * self.merge) ** 2

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes in 16 bits, over all layers and heads."""
        return 2 * self.layers * self.key_value_heads * self.head_dim * _KEY_VALUE_BYTES


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads configuration, preprocessor files and the list of shards.

    Raises CheckpointError: no folder, no Qwen3-VL, missing or empty shards (all named), no tokenizer, no
    preprocessor, JSON files that are cut short, files that cannot be read.
    """
    try:
        return _read(folder)
    except OSError as error:
        raise CheckpointError(
            f"--model {folder} cannot be read ({error.strerror or error}): let this user read it (chmod -R a+rX)"
        ) from error


def _read(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise CheckpointError(
            f"--model {folder} is no folder: give a checkpoint on disk (for instance `hf download "
            f"Qwen/Qwen3-VL-8B-Instruct --local-dir {folder.name or 'judge'}`)"
        )
    config = _json(folder / "config.json", "is this a checkpoint folder?")
    if config.get("model_type") not in _MODEL_TYPES:
        raise CheckpointError(
            f"--model {folder} is a {config.get('model_type')!r} checkpoint: the judge is a Qwen3-VL "
            f"({' or '.join(_MODEL_TYPES)})"
        )
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        raise CheckpointError(
            f"--model {folder} has no tokenizer ({' or '.join(_TOKENIZER_FILES)}): download the whole repository"
        )
    files = {name: _json(folder / name, _RESTORE) for name in _READ_BY_VLLM if (folder / name).exists()}
    if "preprocessor_config.json" not in files and "image_processor" not in files.get(
        "processor_config.json", {}
    ):
        raise CheckpointError(
            f"--model {folder} has no preprocessor_config.json: download the whole repository"
        )
    try:
        text = as_object(config["text_config"], "text_config")
        vision = as_object(config["vision_config"], "vision_config")
        heads = _count(text["num_attention_heads"])
        found = Checkpoint(
            weight_bytes=_weight_bytes(folder),
            layers=_count(text["num_hidden_layers"]),
            heads=heads,
            key_value_heads=_count(text.get("num_key_value_heads", heads)),
            head_dim=_count(text.get("head_dim") or _count(text["hidden_size"]) // heads),
            vision_heads=_count(vision["num_heads"]),
            positions=_count(text["max_position_embeddings"]),
            patch=_count(vision["patch_size"]),
            merge=_count(vision["spatial_merge_size"]),
            temporal_patch=_count(vision["temporal_patch_size"]),
            image_min_pixels=_min_pixels(files, "image"),
            video_min_pixels=_min_pixels(files, "video"),
            video_token_id=_count(config["video_token_id"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{folder / 'config.json'} or a file beside it lacks or garbles {error}: restore it from the checkpoint"
        ) from error
    if absent := [name for name, value in vars(found).items() if value < 1]:
        raise CheckpointError(
            f"{folder}: {', '.join(absent)} must be above 0 in its JSON files: restore them from the checkpoint"
        )
    return found


def _weight_bytes(folder: Path) -> int:
    index = folder / _INDEX
    if index.exists():
        listed = as_object(_json(index, _RESTORE).get("weight_map", {}), f"{index}: weight_map")
        names = sorted({as_text(name, f"{index}: weight_map") for name in listed.values()})
    else:
        names = [_SINGLE]
    broken = [name for name in names if not _is_whole(folder / name)]
    if broken or not names:
        shown = ", ".join(broken[:5]) + (" ..." if len(broken) > 5 else "")
        raise CheckpointError(
            f"--model {folder}: {len(broken)} of {len(names)} weight files are missing or cut short ({shown}): the "
            "download is incomplete, repeat it"
        )
    return sum((folder / name).stat().st_size for name in names)


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says: 8 bytes, the header, then the tensors."""
    try:
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if header_size > min(path.stat().st_size, _MOST_HEADER):
                return False
            header = json.loads(file.read(header_size))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return path.stat().st_size == 8 + header_size + max(ends)
    except PermissionError:
        raise  # it may be whole
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _min_pixels(files: Mapping[str, JsonObject], kind: str) -> int:
    """The lower pixel bound of the preprocessor file for images or videos, wherever the format keeps it."""
    values: object = files.get("processor_config.json", {}).get(f"{kind}_processor")
    if not isinstance(values, dict):
        name = "preprocessor_config.json" if kind == "image" else "video_preprocessor_config.json"
        values = files.get(name)
    if not isinstance(values, dict):
        return _DEFAULT_MIN_PIXELS[kind]
    size = as_object(values.get("size") or {}, "size")
    return _count(values.get("min_pixels") or size.get("shortest_edge") or _DEFAULT_MIN_PIXELS[kind])


def _count(value: JsonValue) -> int:
    """A number as some checkpoint spells it. Raises TypeError and ValueError for what is none."""
    if not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} where a number is wanted")
    return int(value)


def _json(path: Path, remedy: str) -> JsonObject:
    try:
        return read_json_object(path, CheckpointError, _RESTORE)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {remedy}") from error
