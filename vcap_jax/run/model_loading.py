"""Models and policies from checkpoint folders: Hugging Face, or Orbax."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from vcap_jax.models.family import CaptionModel, ModelSettings, VisualBudget
from vcap_jax.models.lora import attach
from vcap_jax.models.lora_files import load_adapter
from vcap_jax.models.policy import ModelConfig, Policy, attention_kernel, policy_of
from vcap_jax.models.registry import family_at
from vcap_jax.models.weight_map import flat_parameters
from vcap_jax.models.weights import stored_types
from vcap_jax.parallel.sharding import Placement
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.world.backbone import BACKBONE_FOLDER

PARAMS_FOLDER = "params"
"""Where an Orbax checkpoint folder keeps its parameters; config.json and the rest lie beside it."""


def checkpoint_folder(path: str) -> Path:
    """The folder a model path names; "embedded" is the tiny backbone that comes with the package."""
    return BACKBONE_FOLDER if path == "embedded" else Path(path)


def load_model(
    folder: Path,
    *,
    placement: Placement,
    dtype: DTypeLike = jnp.float32,
    param_dtype: DTypeLike | None = None,
    remat: str = "none",
    attention_name: str = "auto",
    decode_attention: str = "auto",
    family: str | None = None,
) -> CaptionModel:
    """Reads a Hugging Face folder, or an Orbax checkpoint folder made of one (``launch/convert.py from-hf``).

    param_dtype: what parameters are kept in; None takes the narrowest type that holds all of them as they are stored,
    whatever config.json says.
    attention_name, decode_attention, remat, family: as in ``ModelConfig``.
    Raises ModelFamilyError if no family reads the folder,
    UnsupportedAttention if that attention cannot be computed on the devices of ``placement``.
    """
    reader = family_at(folder, family)
    spec, device = reader.read_spec(folder), placement.mesh.devices.flat[0]
    tensor = placement.mesh.shape["tensor"]
    kernel = attention_kernel(attention_name, spec, dtype, device, decode_attention, tensor=tensor)
    settings = ModelSettings(dtype=dtype, param_dtype=param_dtype or jnp.float32, remat=remat, kernel=kernel)
    if param_dtype is None:
        narrow = reader.abstract_model(spec, replace(settings, param_dtype=jnp.bfloat16))
        settings = replace(settings, param_dtype=_stored_type(folder, narrow))
    placement = placement.with_rules(reader.partition_rules)
    if not (folder / PARAMS_FOLDER).is_dir():
        return reader.load(folder, settings, placement.parameter)
    graphdef, state = nnx.split(reader.abstract_model(spec, settings))
    with Checkpointer(folder / PARAMS_FOLDER, read_only=True) as checkpoints:
        restored, _ = checkpoints.restore({"params": placement.abstract(state)})
    model: CaptionModel = nnx.merge(graphdef, restored["params"])
    return model


def _stored_type(folder: Path, narrow: CaptionModel) -> np.dtype:
    """The narrowest type that holds all parameters as they are stored.

    narrow: the model in bfloat16. What it keeps in float32 all the same does not count.
    """
    if (folder / PARAMS_FOLDER).is_dir():
        wide = {
            f"params.{path}.value" for path, x in flat_parameters(narrow).items() if x.dtype == jnp.float32
        }
        with Checkpointer(folder / PARAMS_FOLDER, read_only=True) as checkpoints:
            stored = checkpoints.stored().items()
        found = {np.dtype(leaf.dtype) for path, leaf in stored if path not in wide}
    else:
        found = stored_types(folder, narrow.weight_map)
    # A family's own files tell nothing here: the widest loses nothing of them.
    return functools.reduce(jnp.promote_types, found or {np.dtype(np.float32)})


def load_policy(config: ModelConfig, *, placement: Placement) -> Policy:
    """Reads the checkpoint folder that ``config.path`` names onto the devices of ``placement``.

    Its visual budget is the checkpoint's own; for a run see ``run.checkpoint_source``.

    Raises AdapterError if ``config.lora.adapter`` cannot be used.
    """
    folder = checkpoint_folder(config.path)
    processor = family_at(folder, config.family).processor(folder, VisualBudget())
    return policy_of(config, load_adapted(config, folder, placement=placement), processor)


def load_adapted(config: ModelConfig, folder: Path, *, placement: Placement) -> CaptionModel:
    """The model of a checkpoint folder in the types of ``config``, with the adapters of ``config.lora``.

    Raises AdapterError if ``config.lora.adapter`` cannot be used.
    """
    model = load_model(
        folder,
        placement=placement,
        dtype=jnp.dtype(config.dtype),
        # Beside adapters every parameter is frozen: none is ever held in more digits.
        param_dtype=jnp.dtype(config.param_dtype if config.lora is None else config.frozen_dtype),
        remat=config.remat,
        attention_name=config.attention,
        decode_attention=config.decode_attention,
        family=config.family,
    )
    if config.lora is not None:
        start = config.lora.adapter
        attach(
            model,
            config.lora,
            param_dtype=jnp.dtype(config.param_dtype),
            sharding=placement.with_rules(model.family().partition_rules).parameter,
            values=None if start is None else load_adapter(Path(start), model.weight_map, config.lora),
        )
    return model
