"""The policy as the trainer holds it: a model definition, what is trained, what is frozen, and its input side.

A Flax NNX module is split once into a static definition and two parameter trees. Programs under jit take the
trees and merge them inside; nothing else in the project carries module objects around. "Frozen" is a set of path
prefixes: the paper freezes the vision encoder and the vision-language aligner, which both live under ``visual``
(Appendix, Training Configuration).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vcap_jax.qwen3_vl.model import Qwen3VL
from vcap_jax.qwen3_vl.processing import Processor
from vcap_jax.qwen3_vl.weights import load_pretrained

Params = Any  # nnx.State, a pytree of arrays


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model is trained, and in which precision.

    path: folder of a Hugging Face checkpoint (config.json, safetensors, tokenizer, processor files).
    dtype: what matrix products compute in.
    param_dtype: what the trained parameters and the optimizer are kept in.
    frozen_dtype: what frozen parameters and the reference policy are kept in; they are never updated, so they
        need no more digits than products use.
    frozen: path prefixes that receive no gradient.
    remat: recompute each decoder layer in the backward pass instead of keeping its activations.
    """

    path: str = "embedded"
    dtype: str = "float32"
    param_dtype: str = "float32"
    frozen_dtype: str = "float32"
    frozen: tuple[str, ...] = ("visual",)
    remat: bool = False

    def __post_init__(self) -> None:
        for name in ("dtype", "param_dtype", "frozen_dtype"):
            if getattr(self, name) not in ("float32", "bfloat16"):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be float32 or bfloat16")


@dataclass(frozen=True)
class Policy:
    """A Qwen3-VL captioner split for training.

    graphdef: static definition; ``nnx.merge(graphdef, trainable, frozen)`` is the module.
    trainable, frozen: disjoint parameter trees.
    processor: tokenizer, chat template and pixel processing of the same checkpoint.
    """

    graphdef: Any
    trainable: Params
    frozen: Params
    processor: Processor

    def with_trainable(self, trainable: Params) -> Policy:
        return Policy(self.graphdef, trainable, self.frozen, self.processor)

    def merge(self) -> Qwen3VL:
        return nnx.merge(self.graphdef, self.trainable, self.frozen)


def frozen_filter(prefixes: tuple[str, ...]) -> Callable[[tuple[Any, ...], Any], bool]:
    """An nnx filter that is True for parameters under one of the dotted ``prefixes``."""
    split = [tuple(prefix.split(".")) for prefix in prefixes]

    def is_frozen(path: tuple[Any, ...], value: Any) -> bool:
        del value
        return any(tuple(str(p) for p in path[: len(prefix)]) == prefix for prefix in split)

    return is_frozen


def split_model(model: Qwen3VL, frozen: tuple[str, ...]) -> tuple[Any, Params, Params]:
    """(graphdef, trainable, frozen). Raises ValueError if a prefix matches nothing or everything is frozen."""
    graphdef, frozen_state, trainable = nnx.split(model, frozen_filter(frozen), ...)
    for prefix in frozen:
        if not any(frozen_filter((prefix,))(path, None) for path, _ in nnx.to_flat_state(frozen_state)):
            raise ValueError(f"model.frozen names {prefix!r}, but no parameter path starts with it")
    if not jax.tree.leaves(trainable):
        raise ValueError(f"model.frozen = {frozen} leaves nothing to train")
    # nnx.merge takes the states in the order of the split; keep (trainable, frozen) everywhere else.
    graphdef, trainable, frozen_state = nnx.split(model, lambda p, v: not frozen_filter(frozen)(p, v), ...)
    return graphdef, trainable, frozen_state


def load_policy(config: ModelConfig, path: Path, *, sharding: Any = None) -> Policy:
    """Reads a checkpoint folder; ``sharding`` is passed on so that arrays land where they belong."""
    processor = Processor.from_pretrained(path)
    model = load_pretrained(
        path,
        dtype=jnp.dtype(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        remat=config.remat,
        sharding=sharding,
    )
    graphdef, trainable, frozen = split_model(model, config.frozen)
    frozen = jax.tree.map(lambda x: x.astype(config.frozen_dtype), frozen)
    return Policy(graphdef, trainable, frozen, processor)
