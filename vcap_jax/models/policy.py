"""The policy as the trainer holds it: a model definition, what is trained, what is frozen, and its input side.

A Flax NNX module is split once into a static definition and two parameter trees. Programs under jit take the
trees and merge them inside; nothing else in the project carries module objects around. "Frozen" is a set of path
prefixes: the paper freezes the vision encoder and the vision-language aligner, which both live under ``visual``
(Appendix, Training Configuration). With LoRA everything is frozen but the adapters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import KeyPath, PyTreeDef
from jax.typing import DTypeLike
from pydantic import Field

from vcap_jax.configuration import ConfigError, settings
from vcap_jax.kernels import attention
from vcap_jax.kernels.attention import DecodingName
from vcap_jax.kernels.attention import Name as AttentionName
from vcap_jax.models.family import (
    CaptionModel,
    Features,
    GraphDef,
    ModelFamily,
    ModelSpec,
    Params,
    Processor,
    PromptBatch,
    family_of,
)
from vcap_jax.models.lora import LoraConfig, is_adapter
from vcap_jax.models.remat import Remat
from vcap_jax.models.weight_map import PathParts
from vcap_jax.parallel.group_sharding import GroupShardedJit

Dtype = Literal["float32", "bfloat16"]


@settings
class ModelConfig:
    """Which model is trained, and in which precision."""

    path: str = "embedded"
    """Folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer, processor files),
    of an Orbax checkpoint, or of a run; "embedded" is the tiny backbone of the embedded world."""
    family: str | None = None
    """Import path package.module:Class of a model family outside this package
    (vcap_jax.models.family); null takes the one that config.json's model_type names."""
    step: int | None = Field(default=None, ge=0)
    """Which checkpoint of a run, by its number (best.json in the run's folder has that of the best);
    null takes the last, and the new run's config.yaml says which that was."""
    dtype: Dtype = "float32"
    """What matrix products compute in."""
    param_dtype: Dtype = "float32"
    """What the trained parameters and the optimizer are kept in."""
    frozen_dtype: Dtype = "float32"
    """What frozen parameters and the reference policy are kept in; they are never updated, so they
    need no more digits than products use. What a model computes with in float32, as Qwen3.5 with its
    rates of decay, stays in float32."""
    frozen: tuple[str, ...] = ("visual",)
    """Path prefixes that receive no gradient. Reinforcement learning needs "visual" among them."""
    lora: LoraConfig | None = None
    """null trains the parameters themselves."""
    attention: AttentionName = "auto"
    """What computes attention: "cudnn" (NVIDIA GPUs, bfloat16), "splash" (TPU), "native" (CPUs, C++
    that is compiled on first use), "chunked" (anywhere), "dense" (anywhere, all scores in memory:
    small sizes only); "auto" takes the platform's own."""
    decode_attention: DecodingName = "auto"
    """What computes attention of new tokens while captions are drawn: "hopper" (NVIDIA H100, H200,
    H800, bfloat16), "tpu" (TPU), "native" (CPUs, C++), "dense" (anywhere: plain products); "auto"
    takes the device's own if model.attention is the platform's own, else "dense"."""
    remat: Remat = "none"
    """What the backward pass of a layer computes again instead of keeping it: "none", "layer" (all
    of it), "attention" (all but attention), "mlp" (all but attention and the MLP's first product),
    "dots" (all but products with weights), "dots_attention" (all but both), "offload" (all of it,
    from hidden states that waited in the host's memory), "offload_attention" and "offload_mlp" (as
    those two, attention waiting there too); see vcap_jax.models.remat."""

    def __post_init__(self) -> None:
        if self.lora is not None and "visual" not in self.frozen:
            raise ValueError(
                f"model.frozen is {list(self.frozen)} beside model.lora: adapters leave everything else frozen, the "
                "vision tower too; leave model.frozen out, or set model.lora=null"
            )

    def for_restoring(self) -> ModelConfig:
        """The same model for parameters that a checkpoint holds: the adapter folder it started from is not read, and
        may be gone."""
        return self if self.lora is None else replace(self, lora=replace(self.lora, adapter=None))

    def trains(self, path: PathParts) -> bool:
        """Whether the parameter of that path is trained, and so in the run's checkpoints."""
        if self.lora is not None:
            return is_adapter(path)
        return not (is_adapter(path) or frozen_filter(self.frozen)(path, None))


@dataclass(frozen=True)
class Policy:
    """A captioner split for training.

    graphdef: static definition; ``nnx.merge(graphdef, trainable, frozen)`` is the module.
    trainable, frozen: disjoint parameter trees.
    processor: tokenizer, chat template and pixel processing of the same checkpoint.
    """

    graphdef: GraphDef
    trainable: Params
    frozen: Params
    processor: Processor

    def merge(self) -> CaptionModel:
        return nnx.merge(self.graphdef, self.trainable, self.frozen)

    @property
    def family(self) -> ModelFamily:
        """Whose model it is."""
        return family_of(self.graphdef)

    @property
    def attention(self) -> str:
        """The kernel's name, which is what ``auto`` came to."""
        return self.merge().kernel.name

    @property
    def decode_attention(self) -> str:
        """The same of the kernel for new tokens."""
        return self.merge().kernel.decoding

    def texts(self, tokens: np.ndarray, lengths: np.ndarray) -> tuple[str, ...]:
        """The captions [G, T] of a group as text, special tokens left out. lengths: [G] tokens."""
        decode = self.processor.tokenizer.decode
        rows = zip(tokens, lengths, strict=True)
        return tuple(decode(row[:length], skip_special_tokens=True).strip() for row, length in rows)

    def reference_params(self, dtype: str) -> Params:
        """The anchor of the KL term: the trainable parameters as they are now, in ``dtype`` where products use that.

        Adapters stay in their own type: they are small, and fresh ones (``b`` is zero) are the base either way.
        """
        if any(is_adapter(path) for path, _ in nnx.to_flat_state(self.trainable)):
            return self.trainable
        types = self.family.decoded_types(self.trainable, dtype)
        return jax.tree.map(lambda x, used: x.astype(used), self.trainable, types)


@functools.lru_cache(maxsize=4)
def vision_encoder(graphdef: GraphDef) -> GroupShardedJit[[Params, Params, PromptBatch], Features]:
    """The jitted ``(trainable, frozen, prompt) -> features`` of a model, split as the prompts are; one program for
    whoever asks."""

    def encode(trainable: Params, frozen: Params, prompt: PromptBatch) -> Features:
        assert prompt.vision is not None
        return nnx.merge(graphdef, trainable, frozen).encode_vision(prompt.vision)

    return GroupShardedJit(encode)


def frozen_vision_encoder(policy: Policy) -> Callable[[Params, Params, PromptBatch], Features]:
    """The same of a policy whose vision side is frozen: what is trained is not looked at, wherever it lies."""
    leaves, structure = jax.tree.flatten(policy.trainable)
    program = _frozen_vision(policy.graphdef, structure, tuple((x.shape, x.dtype) for x in leaves))
    return lambda trainable, frozen, prompt: program(frozen, prompt)


@functools.lru_cache(maxsize=4)
def _frozen_vision(
    graphdef: GraphDef, structure: PyTreeDef, trained: tuple[tuple[tuple[int, ...], np.dtype], ...]
) -> GroupShardedJit[[Params, PromptBatch], Features]:
    """One program for whoever asks. structure, trained: of the parameters that are not looked at."""
    shapes = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in trained])

    def encode(frozen: Params, prompt: PromptBatch) -> Features:
        assert prompt.vision is not None
        return nnx.merge(graphdef, shapes, frozen).encode_vision(prompt.vision)

    return GroupShardedJit(encode)


def frozen_filter(prefixes: tuple[str, ...]) -> Callable[[PathParts, object], bool]:
    """An nnx filter that is True for parameters under one of the dotted ``prefixes``."""
    split = [tuple(prefix.split(".")) for prefix in prefixes]

    def is_frozen(path: PathParts, value: object) -> bool:
        del value
        return any(tuple(str(p) for p in path[: len(prefix)]) == prefix for prefix in split)

    return is_frozen


def split_model(model: CaptionModel, frozen: tuple[str, ...]) -> tuple[GraphDef, Params, Params]:
    """(graphdef, trainable, frozen). Raises ConfigError if a prefix matches nothing or everything is frozen."""
    is_frozen = frozen_filter(frozen)
    graphdef, trainable, *rest = nnx.split(model, lambda path, value: not is_frozen(path, value), ...)
    (frozen_state,) = rest
    for prefix in frozen:
        matches = frozen_filter((prefix,))
        if not any(matches(path, None) for path, _ in nnx.to_flat_state(frozen_state)):
            named = ", ".join(sorted({str(path[0]) for path, _ in nnx.to_flat_state(nnx.state(model))}))
            raise ConfigError(
                f"model.frozen names {prefix!r}, but no parameter path starts with it; they start with {named}"
            )
    if not jax.tree.leaves(trainable):
        raise ConfigError(f"model.frozen = {list(frozen)} leaves nothing to train")
    return graphdef, trainable, frozen_state


def split_adapters(model: CaptionModel) -> tuple[GraphDef, Params, Params]:
    """(graphdef, adapters, all other parameters) of a model with LoRA adapters."""
    graphdef, trainable, *rest = nnx.split(model, is_adapter, ...)
    (frozen,) = rest
    return graphdef, trainable, frozen


def attention_kernel(
    name: str,
    config: ModelSpec,
    dtype: DTypeLike,
    device: jax.Device,
    decoding: str = "auto",
    *,
    tensor: int = 1,
) -> attention.Kernel:
    """The attention kernels of those names (``ModelConfig.attention``, ``decode_attention``) for a model on devices
    such as this, ``tensor`` of which share its heads; see ``attention.choose``, ``check_tensor``,
    ``choose_decoding``."""
    platform, sizes = device.platform, config.head_sizes
    chosen = attention.choose(name, platform=platform, dtype=dtype, head_sizes=sizes)
    attention.check_tensor(chosen.name, tensor)
    capability: str | None = getattr(device, "compute_capability", None)
    return attention.choose_decoding(
        decoding, chosen, platform=platform, dtype=dtype, head_sizes=sizes, capability=capability
    )


def policy_of(config: ModelConfig, model: CaptionModel, processor: Processor) -> Policy:
    """``model`` (see ``load_adapted``) split into what ``config`` trains and what it freezes."""
    if config.lora is not None:
        return Policy(*split_adapters(model), processor)
    graphdef, trainable, frozen = split_model(model, config.frozen)
    types = frozen_types(model.family(), frozen, config.frozen_dtype)
    return Policy(graphdef, trainable, jax.tree.map(lambda x, used: x.astype(used), frozen, types), processor)


def frozen_types(family: ModelFamily, frozen: Params, dtype: str) -> Params:
    """The types of frozen parameters, a tree like ``frozen`` (arrays or abstract): ``dtype``, but for what the decoder
    computes with in float32."""

    def of(path: KeyPath[Hashable], x: jax.Array, used: np.dtype) -> np.dtype:
        del x
        return jnp.dtype(dtype) if getattr(path[0], "key", None) == "visual" else used

    return jax.tree_util.tree_map_with_path(of, frozen, family.decoded_types(frozen, dtype))
