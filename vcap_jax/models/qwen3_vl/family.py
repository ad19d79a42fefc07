"""Qwen3-VL behind the boundary of ``vcap_jax.models.family``, which says what each member means."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import KeyPath
from jax.typing import DTypeLike

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
from vcap_jax.models.qwen3_vl import decoding
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.partition import RULES
from vcap_jax.models.qwen3_vl.processing import Processor, collate
from vcap_jax.models.qwen3_vl.published import CONFIGS
from vcap_jax.models.qwen3_vl.text import Decoder
from vcap_jax.models.qwen3_vl.two_towers import ConfigT, TextT, TwoTowerModel
from vcap_jax.models.qwen3_vl.weight_table import HEAD
from vcap_jax.parallel.sharding import Rule
from vcap_jax.system.json_values import JsonObject

TEXT_TOKENS = 128
"""Of the largest prompt beside its visual tokens: the chat template and the request, generously."""
TIMESTAMP_TOKENS = 12
"""Of a video frame in it: its timestamp and the marks around it."""


class TwoTowerFamily(Generic[ConfigT, TextT]):
    """What the families with this vision tower do alike.

    config, model: their own classes. configs: config.json of each published size. stacks: of the decoder, the modules
    that stack layers. in_float32: names of the decoder's parameters that it computes with in float32.
    """

    name: str
    config: type[ConfigT]
    model: type[TwoTowerModel[ConfigT, TextT]]
    configs: Mapping[str, JsonObject]
    stacks: tuple[str, ...]
    in_float32: tuple[str, ...] = ()

    @property
    def published_sizes(self) -> Sequence[str]:
        return tuple(self.configs)

    def read_spec(self, folder: Path) -> ConfigT:
        return self.config.from_pretrained(folder)

    def published(self, size: str) -> ConfigT:
        """Raises ValueError for a size that is not published."""
        if size not in self.configs:
            raise ValueError(f"{size!r} is no published {self.name} size; known: {', '.join(self.configs)}")
        return self.config.from_dict(self.configs[size])

    def processor(self, folder: Path, budget: VisualBudget) -> Processor:
        return Processor.from_pretrained(folder, budget)

    def abstract_model(self, spec: ConfigT, settings: ModelSettings) -> TwoTowerModel[ConfigT, TextT]:
        return self.model.abstract(spec, **vars(settings))

    def load(
        self, folder: Path, settings: ModelSettings, sharding: weights.Sharding | None
    ) -> TwoTowerModel[ConfigT, TextT]:
        return weights.fill(self.abstract_model(self.read_spec(folder), settings), folder, sharding=sharding)

    def save(
        self, model: TwoTowerModel[ConfigT, TextT], folder: Path, *, dtype: DTypeLike | None
    ) -> float | None:
        return weights.save(model, folder, model.config.to_dict(), dtype=dtype)

    def save_for_vllm(
        self, model: TwoTowerModel[ConfigT, TextT], folder: Path, *, dtype: DTypeLike | None
    ) -> float | None:
        """With a tied head under its own name: vLLM's CPU build computes with a packed copy of the head, which it makes
        anew only where the head is among what it reads."""
        kept = self.save(model, folder, dtype=dtype)
        if model.config.tie_word_embeddings:
            head = np.ascontiguousarray(np.asarray(model.head()).T.astype(dtype))
            weights.write_beside(folder, "model-head.safetensors", HEAD, head)
        return kept

    def apart(
        self, graphdef: nnx.GraphDef[TwoTowerModel[ConfigT, TextT]], trainable: Params, frozen: Params
    ) -> tuple[Params, Params]:
        state = nnx.state(nnx.merge(graphdef, trainable, frozen))
        layers, rest = nnx.split_state(
            state, lambda path, _: path[0] == "text" and path[1] in self.stacks, ...
        )
        return layers, rest

    def lay_out(
        self, graphdef: nnx.GraphDef[TwoTowerModel[ConfigT, TextT]], layers: Params, rest: Params
    ) -> DecodeParams[tuple[Params, ...]]:
        """A parameter tree per decoder layer, in the model's order, and everything else."""
        model = nnx.merge(graphdef, rest, layers)
        layers, rest = (
            jax.tree.map(lambda x, dtype: x.astype(dtype), tree, self.decoded_types(tree, model.dtype))
            for tree in (layers, rest)
        )
        return DecodeParams(self.in_order(model.config, layers), rest)

    @abstractmethod
    def in_order(self, config: ConfigT, layers: Params) -> tuple[Params, ...]:
        """A tree per decoder layer of the stacked parameters of all."""

    def decoded_types(self, params: Params, dtype: DTypeLike) -> Params:
        """The decoder casts each of its own to ``dtype`` on use, but for those that it computes with in float32. The
        vision tower's stay as they are kept: its norms and positions are computed in float32."""

        def of(path: KeyPath[Hashable], x: jax.Array) -> np.dtype:
            names = [getattr(part, "key", None) for part in path]
            kept = names[0] == "visual" or any(name in names for name in self.in_float32)
            return x.dtype if kept else jnp.dtype(dtype)

        return jax.tree_util.tree_map_with_path(of, params)

    def largest_prompt(
        self, spec: ConfigT, modality: Literal["image", "video"], budget: VisualBudget
    ) -> LargestPrompt:
        config = spec.vision
        merge = config.spatial_merge_size**2
        if modality == "image":
            assert budget.max_pixels is not None
            frames, patches = 1, budget.max_pixels // config.patch_size**2 // merge * merge
            depth, text = 1, TEXT_TOKENS
        else:
            assert budget.max_frames is not None
            assert budget.max_frame_tokens is not None
            frames = -(-budget.max_frames // config.temporal_patch_size)
            patches = budget.max_frame_tokens * merge
            depth, text = config.temporal_patch_size, TEXT_TOKENS + TIMESTAMP_TOKENS * frames
        visual = frames * patches // merge
        return LargestPrompt(
            tokens=visual + text,
            frames=frames,
            patches=patches,
            visual=visual,
            patch_numbers=config.in_channels * depth * config.patch_size**2,
        )

    def abstract_prompt(
        self, spec: ConfigT, largest: LargestPrompt, groups: int, buckets: Buckets
    ) -> PromptBatch:
        merge = spec.vision.spatial_merge_size
        visual = np.zeros(largest.tokens, bool)
        visual[: largest.visual] = True
        frame = np.zeros((largest.patches, largest.patch_numbers), np.uint8)
        one = EncodedPrompt(
            tokens=np.zeros(largest.tokens, np.int32),
            positions=np.zeros((3, largest.tokens), np.int32),
            frames=(frame,) * largest.frames,
            grids=np.full((largest.frames, 2), (merge, largest.patches // merge), np.int32),
            is_visual=visual,
        )
        batch = collate([one], buckets, merge, batch_size=1, names=["the largest prompt"])
        abstract: PromptBatch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((groups, *x.shape[1:]), x.dtype), batch
        )
        return abstract


class Qwen3VLFamily(TwoTowerFamily[Qwen3VLConfig, Decoder]):
    """The dense Qwen3-VL checkpoints."""

    name = "Qwen3-VL"
    model_type = "qwen3_vl"
    config, model, configs = Qwen3VLConfig, Qwen3VL, CONFIGS
    stacks = ("layers",)
    partition_rules: Sequence[Rule] = RULES
    vllm_cpu_options: Sequence[str] = ()

    def in_order(self, config: Qwen3VLConfig, layers: Params) -> tuple[Params, ...]:
        numbers = range(config.text.num_hidden_layers)
        return tuple(jax.tree.map(lambda x, i=i: x[i], layers) for i in numbers)

    def decoder(self, graphdef: decoding.GraphDef, params: decoding.DecodeParams) -> decoding.DecodeModel:
        return decoding.DecodeModel(graphdef, params)


@functools.cache
def qwen3_vl() -> ModelFamily:
    """The family's one object, for its own model; others ask the registry."""
    return opaque(Qwen3VLFamily())
