"""Adapters as folders that PEFT reads and writes: ``adapter_config.json`` and ``adapter_model.safetensors``.

PEFT keeps, for every adapted matrix ``W`` [out, in], ``lora_A`` [rank, in] and ``lora_B`` [out, rank] under the
matrix's own name after ``base_model.model.`` (PEFT 0.21).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from vcap_jax.models.errors import damaged
from vcap_jax.models.lora import AdaptedMatrix, LoraConfig, adapted_matrices, adapters, target_parts
from vcap_jax.models.tensor_files import PLAIN_TYPES, write_tensors
from vcap_jax.models.weight_map import Mapped, WeightMap
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonObject, read_json_object

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_PARTS = ("lora_A", "lora_B")
# What PEFT can do beyond plain LoRA and this cannot: each must be absent, false or empty.
_NOT_PLAIN = (
    "use_dora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
)


# Beginnings that move the base's own weights: the adapter belongs to those, not to the base as it is published.
_MOVE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


class AdapterError(VCapError, ValueError):
    """An adapter folder that cannot be used; the message lists what is wrong and says the remedy."""


def save_adapter(
    model: Mapped, folder: Path, lora: LoraConfig, *, base: str, dtype: DTypeLike = np.float32
) -> None:
    """Writes the adapters of ``model`` as a PEFT adapter of the checkpoint ``base``.

    lora: what they were attached with. base: folder or name by which PEFT's user finds the base.
    Raises AdapterError if the model has none, or others than ``lora`` says.
    """
    nodes = adapters(model)
    parts = {path: node.parts for path, node in nodes.items()}
    wanted = target_parts(model.weight_map, lora.targets)
    if parts != wanted or any((node.rank, node.scale) != (lora.rank, lora.scale) for node in nodes.values()):
        raise AdapterError(f"the model's adapters, on {sorted(parts) or 'nothing'}, are not those of {lora}")
    arrays = {}
    for matrix in adapted_matrices(model.weight_map, parts, lora.rank):
        node, at = nodes[matrix.linear], matrix.tensor.at
        halves = (node.a[...][at][:, matrix.a], node.b[...][at][:, matrix.b])
        for name, half in zip(_names(matrix), halves, strict=True):
            arrays[name] = np.ascontiguousarray(np.asarray(half).astype(dtype).T)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(arrays, folder / WEIGHTS_FILE)
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "use_rslora": lora.use_rslora,
        "target_modules": sorted(lora.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def load_adapter(folder: Path, names: WeightMap, lora: LoraConfig) -> dict[str, np.ndarray]:
    """The arrays of a PEFT adapter as ours lie, by dotted path: the ``values`` of ``lora.attach``.

    Raises AdapterError if the folder is none of a plain LoRA adapter, if its rank, alpha, targets or use_rslora are not
    those of ``lora``, or if tensors are missing, unexpected or wrongly shaped: all are listed.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise AdapterError(f"{folder} has no {name}: give a folder that PEFT's save_pretrained wrote")
    _check_config(read_json_object(folder / CONFIG_FILE), folder, lora)
    try:
        with safe_open(folder / WEIGHTS_FILE, framework="numpy") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            if quantised := [f"{name} as {kind}" for name, kind in types.items() if kind not in PLAIN_TYPES]:
                raise AdapterError(
                    f"{folder / WEIGHTS_FILE} stores {quantised[0]}, none of {', '.join(PLAIN_TYPES)}: save the "
                    "adapter in one of these with PEFT"
                )
            stored = {name: file.get_tensor(name) for name in types}
    except SafetensorError as error:
        raise AdapterError(damaged(folder / WEIGHTS_FILE, error)) from error
    found: dict[str, np.ndarray] = {}
    for name, array in stored.items():
        if (canonical := _canonical(name, names)) in found:
            raise AdapterError(
                f"{folder / WEIGHTS_FILE} has {canonical} twice, as {name} too: leave out one of them"
            )
        found[canonical] = array
    parts = target_parts(names, lora.targets)
    matrices = adapted_matrices(names, parts, lora.rank)
    _check_tensors(matrices, found, folder, lora)
    last = {matrix.linear: matrix.tensor for matrix in matrices}  # in the order of layers
    values: dict[str, np.ndarray] = {}
    for matrix in matrices:
        inputs, columns = matrix.tensor.shape[1], parts[matrix.linear]
        width = sum(stop - start for start, stop in columns)
        stack = tuple(1 + layer for layer in last[matrix.linear].at)
        shapes = ((*stack, inputs, len(columns) * lora.rank), (*stack, lora.rank, width))
        for path, name, shape, place in zip(
            matrix.array_paths, _names(matrix), shapes, (matrix.a, matrix.b), strict=True
        ):
            whole = values.setdefault(path, np.zeros(shape, np.float32))
            whole[matrix.tensor.at][:, place] = found[name].astype(np.float32).T
    return values


def _names(matrix: AdaptedMatrix) -> tuple[str, ...]:
    """PEFT's names of ``a`` and ``b`` of a matrix."""
    module = matrix.tensor.name.removesuffix(".weight")
    return tuple(f"{_PREFIX}{module}.{part}.weight" for part in _PARTS)


def _canonical(name: str, names: WeightMap) -> str:
    """PEFT's present spelling, for the published names of the base's modules."""
    inner = name.removeprefix(_PREFIX)
    for part in _PARTS:  # older files name the adapter too
        inner = inner.replace(f".{part}.default.", f".{part}.")
    return _PREFIX + names.canonical_name(inner)


def _check_config(values: JsonObject, folder: Path, lora: LoraConfig) -> None:
    if values.get("peft_type") != "LORA":
        raise AdapterError(f"{folder} is a PEFT adapter of type {values.get('peft_type')!r}, not LORA")
    beyond = [f"{key}={values[key]}" for key in _NOT_PLAIN if values.get(key)]
    if str(values.get("init_lora_weights", "")).lower().startswith(_MOVE_THE_BASE):
        beyond.append(f"init_lora_weights={values['init_lora_weights']}")
    if values.get("bias", "none") != "none":
        beyond.append(f"bias={values['bias']}")
    if beyond:
        raise AdapterError(
            f"{folder} is not plain LoRA: {', '.join(beyond)}; merge it into its base with PEFT"
        )
    theirs = {
        "rank": values.get("r"),
        "alpha": values.get("lora_alpha"),
        "use_rslora": bool(values.get("use_rslora", False)),
    }
    targets = values.get("target_modules")
    if isinstance(targets, list):  # PEFT also takes an expression; then the tensors tell
        if not all(isinstance(target, str) for target in targets):
            raise AdapterError(
                f"{folder / CONFIG_FILE}: target_modules is {targets}, which are no names of layers: restore the file "
                "that PEFT wrote"
            )
        # Its items may be the layers' full names, one for each.
        theirs["targets"] = sorted({target.split(".")[-1] for target in targets})
    ours = {
        "rank": lora.rank,
        "alpha": lora.alpha,
        "use_rslora": lora.use_rslora,
        "targets": sorted(lora.targets),
    }
    wrong = [f"model.lora.{key}={value}" for key, value in theirs.items() if ours[key] != value]
    if wrong:
        raise AdapterError(f"{folder} was made with other settings; to start from it set {' '.join(wrong)}")


def _check_tensors(
    matrices: tuple[AdaptedMatrix, ...], found: Mapping[str, np.ndarray], folder: Path, lora: LoraConfig
) -> None:
    wanted: dict[str, tuple[int, ...]] = {}
    for matrix in matrices:
        outputs, inputs = matrix.tensor.shape
        shapes = ((lora.rank, inputs), (outputs, lora.rank))
        wanted |= dict(zip(_names(matrix), shapes, strict=True))
    problems = [f"missing: {name} {list(wanted[name])}" for name in wanted if name not in found]
    problems += [f"unexpected: {name} {list(found[name].shape)}" for name in found if name not in wanted]
    problems += [
        f"wrong shape: {name} is {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name].shape != shape
    ]
    if problems:
        raise AdapterError(
            f"{folder} does not fit the model and model.lora ({len(problems)} problems); only the decoder's matrices "
            "can have adapters:\n  " + "\n  ".join(problems)
        )
