"""Hugging Face checkpoints of Qwen3-VL in and out; ``weight_table`` has the names."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from vcap_jax.kernels.attention import CHUNKED, Kernel
from vcap_jax.models import weights
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.two_towers import ConfigT, TextT, TwoTowerModel
from vcap_jax.models.qwen3_vl.weight_table import HEAD


def load_pretrained(
    path: str | Path,
    *,
    dtype: DTypeLike = jnp.bfloat16,
    param_dtype: DTypeLike = jnp.float32,
    remat: str = "none",
    kernel: Kernel = CHUNKED,
    sharding: weights.Sharding | None = None,
) -> Qwen3VL:
    """Load a checkpoint folder: ``config.json`` and safetensors, one file or shards with an index.

    Args:
        path: the folder.
        dtype, param_dtype, remat, kernel: see ``Qwen3VL``.
        sharding: (dotted path, shape) of a parameter -> where it goes; None puts all on the default device.

    Raises:
        CheckpointError: missing, unexpected or wrongly shaped tensors, missing shard files: all listed.
        FileNotFoundError: no configuration, or no safetensors at all.
    """
    folder = Path(path)
    config = Qwen3VLConfig.from_pretrained(folder)
    model = Qwen3VL.abstract(config, dtype=dtype, param_dtype=param_dtype, remat=remat, kernel=kernel)
    return weights.fill(model, folder, sharding=sharding)


def write_tied_head(model: TwoTowerModel[ConfigT, TextT], folder: Path, dtype: DTypeLike | None) -> None:
    """Adds a tied head under its own name to what was saved in ``folder``, for a vLLM server that reads it.

    Its CPU build computes with a packed copy of the head, which it makes anew only where the head is among what it
    reads.
    """
    if model.config.tie_word_embeddings:
        head = np.ascontiguousarray(np.asarray(model.head()).T.astype(dtype))
        weights.write_beside(folder, "model-head.safetensors", HEAD, head)


def save_pretrained(
    model: Qwen3VL,
    path: str | Path,
    *,
    dtype: DTypeLike | None = None,
    max_shard_bytes: int = weights.DEFAULT_SHARD_BYTES,
) -> float | None:
    """Write ``config.json`` and safetensors under public names; arguments and result: see ``weights.save``."""
    config = model.config.to_dict()
    return weights.save(model, Path(path), config, dtype=dtype, max_shard_bytes=max_shard_bytes)
