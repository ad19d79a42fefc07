"""Qwen3-VL behind the boundary of ``vcap_jax.models.family``, which says what each member means."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jax.typing import DTypeLike

from vcap_jax.models import weights as files
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.family import (
    LargestPrompt,
    ModelFamily,
    ModelSettings,
    Params,
    VisualBudget,
    opaque,
)
from vcap_jax.models.qwen3_vl import decoding, weights
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig, TwoTowers
from vcap_jax.models.qwen3_vl.inputs import PromptBatch
from vcap_jax.models.qwen3_vl.largest_prompt import abstract_prompt, largest_prompt
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.partition import RULES
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.models.qwen3_vl.published import CONFIGS, published_config
from vcap_jax.parallel.sharding import Rule


class TwoTowerFamily:
    """The input side of the families with this vision tower."""

    def processor(self, folder: Path, budget: VisualBudget) -> Processor:
        return Processor.from_pretrained(folder, budget)

    def largest_prompt(
        self, spec: TwoTowers, modality: Literal["image", "video"], budget: VisualBudget
    ) -> LargestPrompt:
        return largest_prompt(spec.vision, modality, budget)

    def abstract_prompt(
        self, spec: TwoTowers, largest: LargestPrompt, groups: int, buckets: Buckets
    ) -> PromptBatch:
        return abstract_prompt(spec.vision, largest, groups, buckets)


class Qwen3VLFamily(TwoTowerFamily):
    """The dense Qwen3-VL checkpoints."""

    name = "Qwen3-VL"
    model_type = "qwen3_vl"
    published_sizes: tuple[str, ...] = tuple(CONFIGS)
    partition_rules: Sequence[Rule] = RULES
    vllm_cpu_options: Sequence[str] = ()

    def read_spec(self, folder: Path) -> Qwen3VLConfig:
        return Qwen3VLConfig.from_pretrained(folder)

    def published(self, size: str) -> Qwen3VLConfig:
        return published_config(size)

    def abstract_model(self, spec: Qwen3VLConfig, settings: ModelSettings) -> Qwen3VL:
        return Qwen3VL.abstract(spec, **vars(settings))

    def load(self, folder: Path, settings: ModelSettings, sharding: files.Sharding | None) -> Qwen3VL:
        return weights.load_pretrained(folder, sharding=sharding, **vars(settings))

    def save(self, model: Qwen3VL, folder: Path, *, dtype: DTypeLike | None) -> float | None:
        return weights.save_pretrained(model, folder, dtype=dtype)

    def save_for_vllm(self, model: Qwen3VL, folder: Path, *, dtype: DTypeLike | None) -> float | None:
        kept = self.save(model, folder, dtype=dtype)
        weights.write_tied_head(model, folder, dtype)
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
def qwen3_vl() -> ModelFamily:
    """The family's one object, for its own model; others ask the registry."""
    return opaque(Qwen3VLFamily())
