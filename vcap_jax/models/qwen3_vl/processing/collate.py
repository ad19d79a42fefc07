"""Padding prompts to a few fixed sizes, so that the compiled programs are few.

Pure numpy; what comes out is the prompt side of B groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vcap_jax.configuration import ConfigError
from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch, VisionInputs

_CHANNELS = 3


def padded_sizes(
    prompts: Sequence[EncodedPrompt], buckets: Buckets, names: Sequence[str] | None = None
) -> PaddedSizes:
    """The smallest buckets that hold all ``prompts``.

    names: what to call each prompt in an error. Raises PromptTooLargeError for one beyond the largest bucket, by name.
    """
    names = names or [f"prompt {i}" for i in range(len(prompts))]
    named = list(zip(prompts, names, strict=True))
    seen = [(p, n) for p, n in named if p.frames]
    return PaddedSizes(
        tokens=max((buckets.fit("tokens", len(p.tokens), name=n) for p, n in named), default=0),
        frames=max((buckets.fit("frames", len(p.frames), name=n) for p, n in seen), default=0),
        patches=max((buckets.fit("patches", max(map(len, p.frames)), name=n) for p, n in seen), default=0),
        # Stills travel one frame deep; beside a video they are repeated to its depth.
        numbers=max((frame.shape[1] for prompt, _ in seen for frame in prompt.frames), default=0),
    )


def collate(
    prompts: Sequence[EncodedPrompt],
    buckets: Buckets,
    merge_size: int,
    *,
    batch_size: int | None = None,
    names: Sequence[str] | None = None,
    sizes: PaddedSizes | None = None,
) -> PromptBatch:
    """Pads prompts to the smallest buckets that hold them all, or to ``sizes``, which must.

    batch_size: B; missing rows become padding groups of length 0 (default: as many as there are prompts). names: what
    to call each prompt in an error.
    Returns a PromptBatch of numpy arrays; ``vision`` is None if no prompt has a frame.
    Raises PromptTooLargeError for a prompt beyond the largest bucket, by name, ConfigError for a patch bucket that
    merge_size**2 does not divide, ValueError for no prompts, more than batch_size, or pixels of different scales.
    """
    rows = len(prompts) if batch_size is None else batch_size
    if not prompts or len(prompts) > rows:
        raise ValueError(f"{len(prompts)} prompts for a batch of {rows}: give between 1 and {rows}")
    names = names or [f"prompt {i}" for i in range(len(prompts))]
    sizes = sizes or padded_sizes(prompts, buckets, names)
    tokens = np.zeros((rows, sizes.tokens), np.int32)
    positions = np.zeros((rows, 3, sizes.tokens), np.int32)
    lengths = np.zeros(rows, np.int32)
    visual_index = np.full((rows, sizes.tokens), -1, np.int32)
    vision = _collate_frames(prompts, sizes, merge_size, rows, names)
    per_frame = 0 if vision is None else vision.patches.shape[2] // merge_size**2
    for row, prompt in enumerate(prompts):
        count = len(prompt.tokens)
        tokens[row, :count] = prompt.tokens
        positions[row, :, :count] = prompt.positions
        lengths[row] = count
        # Features of frame f stand at f * per_frame, padding frames and padding patches leave gaps.
        index = [f * per_frame + np.arange(len(p) // merge_size**2) for f, p in enumerate(prompt.frames)]
        if index:
            visual_index[row, np.flatnonzero(prompt.is_visual)] = np.concatenate(index)
    return PromptBatch(
        tokens=tokens, positions=positions, lengths=lengths, visual_index=visual_index, vision=vision
    )


def _collate_frames(
    prompts: Sequence[EncodedPrompt], sizes: PaddedSizes, merge_size: int, rows: int, names: Sequence[str]
) -> VisionInputs | None:
    seen = [(p, n) for p, n in zip(prompts, names, strict=True) if p.frames]
    if not seen:
        return None
    if sizes.patches % merge_size**2:
        raise ConfigError(
            f"data.buckets pads a frame to {sizes.patches} patches, no multiple of {merge_size**2}, which make a "
            "visual token: give such multiples as data.buckets.patches or data.buckets.patch_multiple"
        )
    scale = seen[0][0].scale
    for prompt, name in seen:
        if prompt.scale != scale:
            raise ValueError(
                f"{name} is normalised by {prompt.scale}, {seen[0][1]} by {scale}: one batch has one scale; correct "
                "the preprocessor files, or keep images and videos apart"
            )
    patches = np.zeros((rows, sizes.frames, sizes.patches, sizes.numbers), np.uint8)
    grids = np.zeros((rows, sizes.frames, 2), np.int32)
    for row, prompt in enumerate(prompts):
        for i, frame in enumerate(prompt.frames):
            patches[row, i, : len(frame)] = _as_deep(frame, sizes.numbers)
        grids[row, : len(prompt.grids)] = prompt.grids
    return VisionInputs(patches=patches, grids=grids, scale=scale)


def _as_deep(frame: np.ndarray, size: int) -> np.ndarray:
    """The patches [l, C * depth * n] of a frame, repeated in time to ``size`` numbers each."""
    if frame.shape[1] == size:
        return frame
    times = size // frame.shape[1]
    levels = frame.reshape(len(frame), _CHANNELS, 1, -1)
    return np.repeat(levels, times, axis=2).reshape(len(frame), size)
