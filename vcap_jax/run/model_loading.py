"""Models and policies from checkpoint folders: Hugging Face, or Orbax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from vcap_jax.models.policy import ModelConfig, Policy, attention_kernel, policy_of
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.lora import attach
from vcap_jax.models.qwen3_vl.lora_files import load_adapter
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.weights import load_pretrained
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
    dtype: Any = jnp.float32,
    param_dtype: Any = None,
    remat: str = "none",
    attention_name: str = "auto",
) -> Qwen3VL:
    """Reads a Hugging Face folder, or an Orbax checkpoint folder made of one (``launch/convert.py from-hf``).

    param_dtype: what parameters are kept in; None takes the type that config.json says they are stored in.
    attention_name, remat: as in ``ModelConfig``.
    Raises UnsupportedAttention if that attention cannot be computed on the devices of ``placement``.
    """
    if param_dtype is None:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        param_dtype = jnp.dtype(stored.get("dtype") or stored.get("torch_dtype") or "bfloat16")
    config = Qwen3VLConfig.from_pretrained(folder)
    settings: dict[str, Any] = {
        "dtype": dtype,
        "param_dtype": param_dtype,
        "remat": remat,
        "kernel": attention_kernel(attention_name, config, dtype, placement.mesh.devices.flat[0].platform),
    }
    if not (folder / PARAMS_FOLDER).is_dir():
        return load_pretrained(folder, sharding=placement.parameter, **settings)
    model = nnx.eval_shape(lambda: Qwen3VL(config, rngs=nnx.Rngs(0), **settings))
    graphdef, state = nnx.split(model)
    with Checkpointer(folder / PARAMS_FOLDER, read_only=True) as checkpoints:
        restored, _ = checkpoints.restore({"params": placement.abstract(state)})
    return nnx.merge(graphdef, restored["params"])


def load_policy(
    config: ModelConfig,
    *,
    placement: Placement,
    max_pixels: int | None = None,
    max_frames: int | None = None,
    max_frame_tokens: int | None = None,
    fps: float | None = None,
) -> Policy:
    """Reads the checkpoint folder that ``config.path`` names onto the devices of ``placement``.

    For a run see ``run.checkpoint_source``.

    max_pixels, max_frames, max_frame_tokens, fps: replace the checkpoint's own visual budget.
    Raises AdapterError if ``config.lora.adapter`` cannot be used.
    """
    folder = checkpoint_folder(config.path)
    processor = Processor.from_pretrained(
        folder, max_pixels=max_pixels, max_frames=max_frames, max_frame_tokens=max_frame_tokens, fps=fps
    )
    return policy_of(config, load_adapted(config, folder, placement=placement), processor)


def load_adapted(config: ModelConfig, folder: Path, *, placement: Placement) -> Qwen3VL:
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
    )
    if config.lora is not None:
        start = config.lora.adapter
        attach(
            model,
            config.lora,
            param_dtype=jnp.dtype(config.param_dtype),
            sharding=placement.parameter,
            values=None if start is None else load_adapter(Path(start), model.config, config.lora),
        )
    return model
