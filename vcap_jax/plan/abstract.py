"""A run's parameters and batches as shapes: everything the programs are compiled for, and not one number of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.models.policy import ModelConfig, Params, attention_kernel, split_adapters, split_model
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch, VisualFeatures
from vcap_jax.models.qwen3_vl.lora import attach
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.processing import collate
from vcap_jax.models.qwen3_vl.published import CONFIGS, published_config
from vcap_jax.parallel.sharding import Placement
from vcap_jax.plan.errors import PlanningError
from vcap_jax.run.checkpoint_source import lineage
from vcap_jax.run.config import RunConfig

TEXT_TOKENS = 128
"""Of a prompt beside its visual tokens: the chat template and the request, generously."""
TIMESTAMP_TOKENS = 12
"""Of a video frame: its timestamp and the marks around it."""


def model_of(path: str) -> Qwen3VLConfig:
    """The model a ``model.path`` names: a checkpoint folder, a run, "embedded", or a published size ("8B", also as
    part of a checkpoint's public name). Raises PlanningError if it is none of them."""
    folder = lineage(path).origin
    if (folder / "config.json").is_file():
        return Qwen3VLConfig.from_pretrained(folder)
    words = Path(path).name.replace("_", "-").split("-")
    size = next((size for size in CONFIGS if size in words), None)
    if size is None:
        raise PlanningError(
            f"model.path {path!r} is neither a folder with a config.json nor a published size "
            f"({', '.join(CONFIGS)})"
        )
    return published_config(size)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The shapes of a prompt and its captions, as padded.

    tokens: P of the prompt. frames, patches: F, and L of each frame. visual: features of a prompt. depth: pictures in
    a patch (1 for a still image). captions: G. caption_tokens: T.
    """

    tokens: int
    frames: int
    patches: int
    visual: int
    captions: int
    caption_tokens: int
    patch_numbers: int


def largest_sizes(config: RunConfig, model: Qwen3VLConfig) -> Sizes:
    """The largest prompt and captions that the configuration lets in.

    Raises PlanningError if it sets no visual budget, so that there is no largest prompt.
    """
    data, vision = config.data, model.vision
    merge = vision.spatial_merge_size**2
    if config.modality == "image":
        if data.max_pixels is None:
            raise PlanningError("data.max_pixels is not set: without it a plan has no largest image")
        frames, patches = 1, data.max_pixels // vision.patch_size**2 // merge * merge
        depth, text = 1, TEXT_TOKENS
    else:
        if data.max_frames is None or data.max_frame_tokens is None:
            raise PlanningError(
                "data.max_frames and data.max_frame_tokens are not set: without them a plan has no largest video"
            )
        frames = -(-data.max_frames // vision.temporal_patch_size)
        patches = data.max_frame_tokens * merge
        depth, text = vision.temporal_patch_size, TEXT_TOKENS + TIMESTAMP_TOKENS * frames
    limit = data.buckets.tokens[-1] if data.buckets.tokens else data.buckets.max_tokens
    visual = frames * patches // merge
    return Sizes(
        tokens=limit or visual + text,
        frames=frames,
        patches=patches,
        visual=visual,
        captions=config.rollout.group_size,
        caption_tokens=config.rollout.max_completion_length,
        patch_numbers=vision.in_channels * depth * vision.patch_size**2,
    )


def abstract_prompt(config: RunConfig, sizes: Sizes, groups: int, merge: int) -> PromptBatch:
    """``groups`` prompts of that size, padded by the run's own buckets, as ``jax.ShapeDtypeStruct``.

    Raises PromptTooLargeError if the buckets have no room for it.
    """
    visual = np.zeros(sizes.tokens, bool)
    visual[: sizes.visual] = True
    frame = np.zeros((sizes.patches, sizes.patch_numbers), np.uint8)
    one = EncodedPrompt(
        tokens=np.zeros(sizes.tokens, np.int32),
        positions=np.zeros((3, sizes.tokens), np.int32),
        frames=(frame,) * sizes.frames,
        grids=np.full((sizes.frames, 2), (merge, sizes.patches // merge), np.int32),
        is_visual=visual,
    )
    batch = collate([one], config.data.buckets, merge, batch_size=1, names=["the largest prompt"])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((groups, *x.shape[1:]), x.dtype), batch)


@dataclass(frozen=True)
class AbstractPolicy:
    """As ``Policy``, without numbers: definition, trained and frozen parameters, the KL term's anchor (None without
    one), the attention kernel's name."""

    graphdef: Any
    trainable: Params
    frozen: Params
    reference: Params | None
    kernel: Any


def abstract_policy(config: RunConfig, model: Qwen3VLConfig, platform: str) -> AbstractPolicy:
    """What ``load_policy`` would put on the devices."""
    settings: ModelConfig = config.model
    kernel = attention_kernel(settings.attention, model, jnp.dtype(settings.dtype), platform)
    kept = settings.param_dtype if settings.lora is None else settings.frozen_dtype

    def build() -> Qwen3VL:
        built = Qwen3VL(
            model,
            rngs=nnx.Rngs(0),
            dtype=jnp.dtype(settings.dtype),
            param_dtype=jnp.dtype(kept),
            remat=settings.remat,
            kernel=kernel,
        )
        if settings.lora is not None:
            attach(built, settings.lora, param_dtype=jnp.dtype(settings.param_dtype))
        return built

    whole = nnx.eval_shape(build)
    if settings.lora is not None:
        graphdef, trainable, frozen = split_adapters(whole)
        # The anchor is the base with its adapters zeroed: no copy but theirs.
        reference = trainable
    else:
        graphdef, trainable, frozen = split_model(whole, settings.frozen)
        frozen = cast(frozen, settings.frozen_dtype)
        reference = cast(trainable, settings.frozen_dtype)
    return AbstractPolicy(
        graphdef, trainable, frozen, reference if config.grpo.objective.beta > 0 else None, kernel
    )


def cast(tree: Any, dtype: str) -> Any:
    """The tree with every array in ``dtype``."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype)), tree)


def placed_batch(tree: Any, placement: Placement) -> Any:
    """A batch split by group, as ``Placement.batch`` splits arrays."""
    return jax.tree.map(lambda x: placed(x, placement.groups(x.shape[0])), tree)


def placed(tree: Any, sharding: Any) -> Any:
    """Every array of the tree with one and the same sharding."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def features_of(prompt: PromptBatch, model: Qwen3VLConfig, dtype: str) -> VisualFeatures:
    """What the vision tower gives for the prompts."""
    assert prompt.vision is not None
    groups, frames, patches, _ = prompt.vision.patches.shape
    visual = frames * patches // model.vision.spatial_merge_size**2
    width, taps = model.text.hidden_size, len(model.vision.deepstack_visual_indexes)
    return VisualFeatures(
        jax.ShapeDtypeStruct((groups, visual, width), jnp.dtype(dtype)),
        jax.ShapeDtypeStruct((groups, taps, visual, width), jnp.dtype(dtype)),
    )


def bytes_per_device(tree: Any) -> int:
    """Of placed arrays, on the device that holds most (all hold the same)."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        shape: Sequence[int] = leaf.shape
        if leaf.sharding is not None:
            shape = leaf.sharding.shard_shape(leaf.shape)
        itemsize = 4 if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.dtype.itemsize
        total += int(np.prod(shape)) * itemsize
    return total
