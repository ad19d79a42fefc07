"""A run's parameters and batches as shapes: everything the programs are compiled for, and not one number of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from vcap_jax.kernels import attention
from vcap_jax.kernels.attention import Kernel
from vcap_jax.models.family import (
    Features,
    GraphDef,
    LargestPrompt,
    ModelFamily,
    ModelSettings,
    ModelSpec,
    Params,
    PromptBatch,
    Vision,
    VisualBudget,
)
from vcap_jax.models.lora import attach
from vcap_jax.models.policy import ModelConfig, attention_kernel, frozen_types, split_adapters, split_model
from vcap_jax.models.registry import FAMILIES, family_at, load_family
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.sharding import Placement
from vcap_jax.plan.targets import PlanningError
from vcap_jax.run.checkpoint_source import lineage
from vcap_jax.run.config import RunConfig

Tree = TypeVar("Tree")
"""A pytree, of what stands for each array: its shape, type and sharding."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that is planned with, and whose it is."""

    family: ModelFamily
    spec: ModelSpec


def model_of(config: ModelConfig) -> Model:
    """The model that ``config.path`` names: a checkpoint folder, a run, "embedded", a published size ("8B"), or a
    checkpoint's public name, which has family and size in it. Raises PlanningError if it is none of them."""
    folder = lineage(config.path).origin
    if (folder / "config.json").is_file():
        family = family_at(folder, config.family)
        return Model(family=family, spec=family.read_spec(folder))
    paths = [*([] if config.family is None else [config.family]), *FAMILIES.values()]
    families = [load_family(path) for path in paths]
    name = Path(config.path).name.replace("_", "-")
    for family in families:
        # The size alone would take other families' checkpoints (Qwen2.5-VL-32B) for this one's.
        whose = family.name.lower() in name.lower()
        words = name.split("-") if whose else [name]
        size = next((size for size in family.published_sizes if size in words), None)
        if size is not None:
            return Model(family=family, spec=family.published(size))
    known = "; ".join(f"{family.name} {', '.join(family.published_sizes)}" for family in families)
    raise PlanningError(
        f"model.path {config.path!r} is neither a folder with a config.json nor a published size ({known}), "
        "nor a public name with one"
    )


@dataclass(frozen=True, kw_only=True)
class Sizes(LargestPrompt):
    """The shapes of a prompt and its captions, as padded. captions: G. caption_tokens: T."""

    captions: int
    caption_tokens: int


def largest_sizes(config: RunConfig, model: Model) -> Sizes:
    """The largest prompt and captions that the configuration lets in.

    Raises PlanningError if it sets no visual budget, so that there is no largest prompt.
    """
    data = config.data
    if config.modality == "image":
        if data.max_pixels is None:
            raise PlanningError("data.max_pixels is not set: without it a plan has no largest image")
    elif data.max_frames is None or data.max_frame_tokens is None:
        raise PlanningError(
            "data.max_frames and data.max_frame_tokens are not set: without them a plan has no largest video"
        )
    budget = VisualBudget(
        max_pixels=data.max_pixels, max_frames=data.max_frames, max_frame_tokens=data.max_frame_tokens
    )
    prompt = model.family.largest_prompt(model.spec, config.modality, budget)
    limit = data.buckets.tokens[-1] if data.buckets.tokens else data.buckets.max_tokens
    return Sizes(
        **{**vars(prompt), "tokens": limit or prompt.tokens},
        captions=config.rollout.group_size,
        caption_tokens=columns_for(config.rollout.max_completion_length),
    )


def abstract_prompt(config: RunConfig, model: Model, sizes: Sizes, groups: int) -> PromptBatch:
    """``groups`` prompts of that size, padded by the run's own buckets, as ``jax.ShapeDtypeStruct``.

    Raises PromptTooLargeError if the buckets have no room for it.
    """
    return model.family.abstract_prompt(model.spec, sizes, groups, config.data.buckets)


@dataclass(frozen=True)
class AbstractPolicy:
    """As ``Policy``, without numbers: definition, trained and frozen parameters, the KL term's anchor (None without
    one), the attention kernel's name."""

    graphdef: GraphDef
    trainable: Params
    frozen: Params
    reference: Params | None
    kernel: Kernel


def abstract_policy(config: RunConfig, model: Model, device: jax.Device) -> AbstractPolicy:
    """What ``load_policy`` would put on devices such as this."""
    asked, dtype = config.model, jnp.dtype(config.model.dtype)
    kernel = attention_kernel(
        asked.attention, model.spec, dtype, device, asked.decode_attention, tensor=config.mesh.tensor
    )
    return abstract_parameters(config, model, kernel)


def abstract_parameters(config: RunConfig, model: Model, kernel: Kernel) -> AbstractPolicy:
    """``abstract_policy`` with attention by that kernel, on no device in particular."""
    settings: ModelConfig = config.model
    kept = settings.param_dtype if settings.lora is None else settings.frozen_dtype
    whole = model.family.abstract_model(
        model.spec,
        ModelSettings(
            dtype=jnp.dtype(settings.dtype), param_dtype=jnp.dtype(kept), remat=settings.remat, kernel=kernel
        ),
    )
    if settings.lora is not None:
        attach(whole, settings.lora, param_dtype=jnp.dtype(settings.param_dtype))
        graphdef, trainable, frozen = split_adapters(whole)
        # The anchor is the base with its adapters zeroed: no copy but theirs.
        reference = trainable
    else:
        graphdef, trainable, frozen = split_model(whole, settings.frozen)
        frozen = _as_types(frozen, frozen_types(model.family, frozen, settings.frozen_dtype))
        types = model.family.decoded_types(trainable, settings.frozen_dtype)
        reference = _as_types(trainable, types)
    return AbstractPolicy(
        graphdef, trainable, frozen, reference if config.grpo.objective.beta > 0 else None, kernel
    )


def parameters_anywhere(config: RunConfig, model: Model) -> AbstractPolicy:
    """``abstract_parameters`` where only sizes are asked for: with the attention kernel that every device has."""
    return abstract_parameters(config, model, attention.kernel("dense"))


def parameter_counts(config: RunConfig) -> tuple[int, int] | None:
    """How many numbers are trained, and how many are not; None of a checkpoint that does not say its sizes."""
    try:
        policy = parameters_anywhere(config, model_of(config.model))
    except ValueError:
        return None
    trained, frozen = (
        sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (policy.trainable, policy.frozen)
    )
    return trained, frozen


def _as_types(tree: Params, types: Params) -> Params:
    return jax.tree.map(lambda x, used: jax.ShapeDtypeStruct(x.shape, used), tree, types)


def placed_batch(tree: Tree, placement: Placement) -> Tree:
    """A batch split by group, as ``Placement.batch`` splits arrays."""
    return jax.tree.map(lambda x: placed(x, placement.groups(x.shape[0])), tree)


def placed(tree: Tree, sharding: Sharding) -> Tree:
    """Every array of the tree with one and the same sharding."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def features_of(policy: AbstractPolicy, prompt: PromptBatch) -> Features:
    """What the vision side gives for the prompts."""

    def encode(trainable: Params, frozen: Params, vision: Vision) -> Features:
        return nnx.merge(policy.graphdef, trainable, frozen).encode_vision(vision)

    return jax.eval_shape(encode, policy.trainable, policy.frozen, prompt.vision)


def bytes_per_device(tree: object) -> int:
    """Of placed arrays, on the device that holds most (all hold the same)."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        shape: Sequence[int] = leaf.shape
        if leaf.sharding is not None:
            shape = leaf.sharding.shard_shape(leaf.shape)
        itemsize = 4 if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.dtype.itemsize
        total += int(np.prod(shape)) * itemsize
    return total
