"""Qwen3.5 behind the boundary of ``vcap_jax.models.family``, which says what each member means."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
from flax import nnx

from vcap_jax.models.family import ModelFamily, Params, opaque
from vcap_jax.models.qwen3_5 import decoding
from vcap_jax.models.qwen3_5.config import FULL, Qwen35Config
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
    stacks = ("delta_layers", "attention_layers")
    in_float32 = ("scale", "log_rate", "rate_bias", "conv")
    partition_rules: Sequence[Rule] = RULES
    # There vLLM 0.32 shares prefixes of recurrent layers only with prefills in parts, which it must do without there.
    vllm_cpu_options: Sequence[str] = ("--no-enable-prefix-caching",)

    def in_order(self, config: Qwen35Config, layers: Params) -> tuple[Params, ...]:
        kinds = nnx.split_state(layers, lambda path, _: path[1] == "delta_layers", ...)
        taken = [0, 0]
        found = []
        for kind in config.text.layer_types:
            which = int(kind == FULL)
            found.append(jax.tree.map(lambda x, i=taken[which]: x[i], kinds[which]))
            taken[which] += 1
        return tuple(found)

    def decoder(self, graphdef: decoding.GraphDef, params: decoding.DecodeParams) -> decoding.DecodeModel:
        return decoding.DecodeModel(graphdef, params)


@functools.cache
def qwen3_5() -> ModelFamily:
    """The family's one object, for its own model; others ask the registry."""
    return opaque(Qwen35Family())
