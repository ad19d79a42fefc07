"""Finding a checkpoint's family: by ``model_type`` of its config.json, or by an import path in the configuration."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from vcap_jax.models.errors import CheckpointError
from vcap_jax.models.family import ModelFamily
from vcap_jax.system.errors import VCapError
from vcap_jax.system.plugins import named_object, users_code

FAMILIES: Mapping[str, str] = {
    "qwen3_vl": "vcap_jax.models.qwen3_vl.family:Qwen3VLFamily",
    "qwen3_5": "vcap_jax.models.qwen3_5.family:Qwen35Family",
}
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
    found = named_object(path, where=where, kind="family", known=(), error=ModelFamilyError)
    if not isinstance(found, type):
        raise ModelFamilyError(f"{where} is not a class")
    lacking = sorted(name for name in _members() if not hasattr(found, name))
    if lacking:
        raise ModelFamilyError(f"{where} lacks {', '.join(lacking)}; see vcap_jax.models.family.ModelFamily")
    with users_code(f"{where} cannot be made", found.__module__, ModelFamilyError):
        family: ModelFamily = found()
    return family


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
