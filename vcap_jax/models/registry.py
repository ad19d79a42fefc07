"""Finding a checkpoint's family: by ``model_type`` of its config.json, or by an import path in the configuration."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from pathlib import Path

from vcap_jax.models.errors import CheckpointError
from vcap_jax.models.family import ModelFamily
from vcap_jax.system.errors import VCapError

FAMILIES: Mapping[str, str] = {"qwen3_vl": "vcap_jax.models.qwen3_vl.family:Qwen3VLFamily"}
"""Families of this project: ``model_type`` -> import path."""


class ModelFamilyError(VCapError, ValueError):
    """A model family that cannot be used; the message names it and the remedy."""


def family_at(folder: Path, named: str | None = None) -> ModelFamily:
    """The family of the checkpoint in ``folder``.

    named: import path of a family outside the package (``model.family``). It reads checkpoints of its own
    ``model_type``, those of this project's too; other checkpoints are their own family's.

    Raises ModelFamilyError if no family reads the checkpoint, CheckpointError if its config.json is damaged,
    FileNotFoundError without one.
    """
    model_type = _model_type(folder)
    if named is not None and (found := load_family(named)).model_type == model_type:
        return found
    if model_type in FAMILIES:
        return load_family(FAMILIES[model_type])
    whose = (
        ""
        if named is None
        else f" and not {load_family(named).model_type!r}, which model.family {named!r} reads"
    )
    raise ModelFamilyError(
        f"{folder / 'config.json'}: model_type is {model_type!r}, which is none of {', '.join(FAMILIES)}{whose}; "
        "give a checkpoint of one of these, or name a family of your own: model.family=package.module:Class"
    )


@functools.cache
def load_family(path: str) -> ModelFamily:
    """The one object of the family at an import path ``package.module:Class``. Raises ModelFamilyError."""
    where = f"model.family {path!r}"
    module_name, colon, class_name = path.partition(":")
    if not (colon and module_name and class_name):
        raise ModelFamilyError(f"{where} is no import path: give package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's own code raises
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        remedy = "; it must be installed or on PYTHONPATH" if missing else ""
        raise ModelFamilyError(f"{where}: {module_name} cannot be imported: {error!r}{remedy}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ModelFamilyError(f"{where}: {module_name} has no class {class_name}")
    lacking = sorted(name for name in _members() if not hasattr(found, name))
    if lacking:
        raise ModelFamilyError(f"{where} lacks {', '.join(lacking)}; see vcap_jax.models.family.ModelFamily")
    try:
        family: ModelFamily = found()
        return family
    except Exception as error:
        raise ModelFamilyError(f"{where} cannot be made: {error!r}") from error


def _members() -> set[str]:
    declared = {*ModelFamily.__annotations__, *vars(ModelFamily)}
    return {name for name in declared if not name.startswith("_")}


def _model_type(folder: Path) -> str:
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"no model configuration at {file}; expected a folder with a config.json")
    try:
        model_type = json.loads(file.read_text(encoding="utf-8"))["model_type"]
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"{file} is not valid JSON with a model_type ({error}): restore it from the checkpoint"
        ) from error
    return str(model_type)
