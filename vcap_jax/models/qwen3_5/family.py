"""Qwen3.5 behind the boundary of ``vcap_jax.models.family``, which says what each member means."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from jax.typing import DTypeLike

from vcap_jax.models.family import ModelFamily, Params, opaque
from vcap_jax.models.qwen3_5 import decoding
from vcap_jax.models.qwen3_5.config import Qwen35Config
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_5.partition import RULES
from vcap_jax.models.qwen3_5.published import CONFIGS
from vcap_jax.models.qwen3_5.text import Decoder
from vcap_jax.models.qwen3_vl.family import TwoTowerFamily
from vcap_jax.parallel.sharding import Rule


class Qwen35Family(TwoTowerFamily[Qwen35Config, Decoder]):
    """The dense Qwen3.5, 3.6 and 3.8 checkpoints."""

    name = "Qwen3.5"
    model_type = "qwen3_5"
    config, model, configs = Qwen35Config, Qwen35, CONFIGS
    partition_rules: Sequence[Rule] = RULES
    # There vLLM 0.32 shares prefixes of recurrent layers only with prefills in parts, which it must do without there.
    vllm_cpu_options: Sequence[str] = ("--no-enable-prefix-caching",)

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
