"""Checkpoints of a Qwen3-VL in and out, with settings that its family does not offer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vcap_jax.models import weights
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.model import Qwen3VL


def load_pretrained(folder: Path, *, sharding: weights.Sharding | None = None, **settings: Any) -> Qwen3VL:
    """settings: of ``Qwen3VL``."""
    model = Qwen3VL.abstract(Qwen3VLConfig.from_pretrained(folder), **settings)
    return weights.fill(model, folder, sharding=sharding)


def save_pretrained(model: Qwen3VL, folder: Path, **options: Any) -> float | None:
    """options, result: of ``weights.save``."""
    return weights.save(model, folder, model.config.to_dict(), **options)
