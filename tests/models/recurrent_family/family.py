"""The family itself, found by ``model.family=tests.models.recurrent_family.family:RecurrentFamily``."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from tests.models.recurrent_family.model import (
    Prompts,
    RecurrentCaptioner,
    RecurrentDecoder,
    Spec,
    abstract,
)
from tests.models.recurrent_family.processing import MOST_FRAMES, SQUARES, SquareProcessor
from vcap_jax.models import weights
from vcap_jax.models.buckets import Buckets
from vcap_jax.models.family import (
    DecodeParams,
    LargestPrompt,
    ModelFamily,
    ModelSettings,
    Params,
    VisualBudget,
    opaque,
)
from vcap_jax.parallel.sharding import Rule

GraphDef = nnx.GraphDef[RecurrentCaptioner]


class RecurrentFamily:
    name = "tiny recurrent"
    model_type = "tiny_recurrent"
    published_sizes = ("Tiny",)
    partition_rules = (
        Rule(r"(^|\.)(scale|bias|decay)$"),
        Rule(r"\.(qkv|enter)\.kernel$", tensor=-1, fsdp=(-2, -1)),
    )

    def read_spec(self, folder: Path) -> Spec:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return Spec(**{name: values[name] for name in Spec.__dataclass_fields__})

    def published(self, size: str) -> Spec:
        return {"Tiny": Spec(vocab_size=700)}[size]

    def processor(self, folder: Path, budget: VisualBudget) -> SquareProcessor:
        return SquareProcessor.from_folder(folder, budget)

    def abstract_model(self, spec: Spec, settings: ModelSettings) -> RecurrentCaptioner:
        return abstract(spec, **vars(settings))

    def load(
        self, folder: Path, settings: ModelSettings, sharding: weights.Sharding | None
    ) -> RecurrentCaptioner:
        return weights.fill(abstract(self.read_spec(folder), **vars(settings)), folder, sharding=sharding)

    def save(self, model: RecurrentCaptioner, folder: Path, *, dtype: DTypeLike | None) -> float | None:
        return weights.save(model, folder, model.config.to_dict(), dtype=dtype)

    def apart(self, graphdef: GraphDef, trainable: Params, frozen: Params) -> tuple[Params, Params]:
        return nnx.State({}), nnx.state(nnx.merge(graphdef, trainable, frozen))

    def lay_out(self, graphdef: GraphDef, layers: Params, rest: Params) -> DecodeParams[Params]:
        dtype = nnx.merge(graphdef, rest).dtype
        types = self.decoded_types(rest, dtype)
        return DecodeParams(layers, jax.tree.map(lambda x, dtype: x.astype(dtype), rest, types))

    def decoded_types(self, params: Params, dtype: DTypeLike) -> Params:
        return jax.tree.map(lambda _: jnp.dtype(dtype), params)

    def decoder(self, graphdef: GraphDef, params: DecodeParams[Params]) -> RecurrentDecoder:
        return RecurrentDecoder(graphdef, params)

    def largest_prompt(
        self, spec: Spec, modality: Literal["image", "video"], budget: VisualBudget
    ) -> LargestPrompt:
        frames = 1 if modality == "image" else budget.max_frames or MOST_FRAMES
        visual = frames * SQUARES
        return LargestPrompt(
            tokens=visual + 32,
            frames=frames,
            patches=SQUARES,
            visual=visual,
            patch_numbers=spec.patch_numbers,
        )

    def abstract_prompt(self, spec: Spec, largest: LargestPrompt, groups: int, buckets: Buckets) -> Prompts:
        tokens = buckets.fit("tokens", largest.tokens, name="the largest prompt")

        def zeros() -> Prompts:
            return Prompts(
                jnp.zeros((groups, tokens), np.int32),
                jnp.zeros((groups,), np.int32),
                jnp.zeros((groups, largest.visual, spec.patch_numbers), np.uint8),
            )

        return jax.eval_shape(zeros)


@functools.cache
def the_family() -> ModelFamily:
    return opaque(RecurrentFamily())
