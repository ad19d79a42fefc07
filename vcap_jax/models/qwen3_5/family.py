"""Qwen3.5 behind the boundary of ``vcap_jax.models.family``, which says what each member means."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from jax.typing import DTypeLike

from vcap_jax.models import weights as files
from vcap_jax.models.family import ModelFamily, ModelSettings, Params, opaque
from vcap_jax.models.qwen3_5 import decoding
from vcap_jax.models.qwen3_5.config import Qwen35Config
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_5.partition import RULES
from vcap_jax.models.qwen3_5.published import CONFIGS, published_config
from vcap_jax.models.qwen3_vl.family import TwoTowerFamily
from vcap_jax.models.qwen3_vl.weights import write_tied_head
from vcap_jax.parallel.sharding import Rule


class Qwen35Family(TwoTowerFamily):
    """The dense Qwen3.5, 3.6 and 3.8 checkpoints."""

    name = "Qwen3.5"
    model_type = "qwen3_5"
    published_sizes: tuple[str, ...] = tuple(CONFIGS)
    partition_rules: Sequence[Rule] = RULES
    # There vLLM 0.32 shares prefixes of recurrent layers only with prefills in parts, which it must do without there.
    vllm_cpu_options: Sequence[str] = ("--no-enable-prefix-caching",)

    def read_spec(self, folder: Path) -> Qwen35Config:
        return Qwen35Config.from_pretrained(folder)

    def published(self, size: str) -> Qwen35Config:
        return published_config(size)

    def abstract_model(self, spec: Qwen35Config, settings: ModelSettings) -> Qwen35:
        return Qwen35.abstract(spec, **vars(settings))

    def load(self, folder: Path, settings: ModelSettings, sharding: files.Sharding | None) -> Qwen35:
        return files.fill(self.abstract_model(self.read_spec(folder), settings), folder, sharding=sharding)

    def save(self, model: Qwen35, folder: Path, *, dtype: DTypeLike | None) -> float | None:
        return files.save(model, folder, model.config.to_dict(), dtype=dtype)

    def save_for_vllm(self, model: Qwen35, folder: Path, *, dtype: DTypeLike | None) -> float | None:
        kept = self.save(model, folder, dtype=dtype)
        write_tied_head(model, folder, dtype)
        return kept

    def apart(self, graphdef: decoding.GraphDef, trainable: Params, frozen: Params) -> tuple[Params, Params]:
        return decoding.apart(graphdef, trainable, frozen)

    def lay_out(self, graphdef: decoding.GraphDef, layers: Params, rest: Params) -> decoding.DecodeParams:
        return decoding.lay_out(graphdef, layers, rest)

    def decoded_types(self, params: Params, dtype: DTypeLike) -> Params:
        return decoding.decoded_types(params, dtype)

    def decoder(self, graphdef: decoding.GraphDef, params: decoding.DecodeParams) -> decoding.DecodeModel:
        return decoding.DecodeModel(graphdef, params)


@functools.cache
def qwen3_5() -> ModelFamily:
    """The family's one object, for its own model; others ask the registry."""
    return opaque(Qwen35Family())
