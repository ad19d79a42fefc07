"""Padding prompts to a few fixed sizes, so that the compiled programs are few.

Pure numpy; what comes out is the prompt side of B groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from vcap_jax.configuration import settings
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch, VisionInputs
from vcap_jax.models.qwen3_vl.processing.errors import PromptTooLargeError

_CHANNELS = 3
_SINGULAR = {"tokens": "token", "frames": "frame", "patches": "patch"}


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise ValueError("give ascending sizes")
    return sizes


_Sizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_ascending)]


@settings
class Buckets:
    """The sizes prompts are padded to; each combination in use compiles once."""

    tokens: _Sizes = ()
    """Allowed numbers of tokens of a prompt, ascending; an empty list rounds up to
    token_multiple."""
    frames: _Sizes = ()
    """Allowed numbers of frames of a prompt, ascending; an empty list rounds up to
    frame_multiple."""
    patches: _Sizes = ()
    """Allowed numbers of patches of a frame, multiples of merge_size**2, ascending; an empty list
    rounds up to patch_multiple."""
    token_multiple: int = Field(default=128, ge=1)
    """Tokens of a prompt are rounded up to a multiple of this."""
    frame_multiple: int = Field(default=1, ge=1)
    """Frames of a prompt are rounded up to a multiple of this."""
    patch_multiple: int = Field(default=64, ge=1)
    """Patches of a frame are rounded up to a multiple of this."""
    max_tokens: int = Field(default=0, ge=0)
    """The most tokens of a prompt where they are rounded up; 0 for no limit."""
    max_frames: int = Field(default=0, ge=0)
    """The most frames of a prompt where they are rounded up; 0 for no limit."""
    max_patches: int = Field(default=0, ge=0)
    """The most patches of a frame where they are rounded up; 0 for no limit."""

    def fit(self, what: str, size: int, *, name: str = "prompt") -> int:
        """The padded size for ``size`` tokens, frames or patches (``what``).

        Raises:
            PromptTooLargeError: beyond the largest bucket; ``name`` tells whose.
        """
        sizes: tuple[int, ...] = getattr(self, what)
        multiple: int = getattr(self, f"{_SINGULAR[what]}_multiple")
        if sizes:
            for allowed in sizes:
                if size <= allowed:
                    return allowed
            limit = sizes[-1]
        else:
            limit = getattr(self, f"max_{what}")
            if not limit or size <= limit:
                return -(-size // multiple) * multiple
        of = " in a frame" if what == "patches" else ""
        raise PromptTooLargeError(
            f"{name} has {size} {what}{of}, the limit is {limit}: lower the pixel or frame budget, "
            f"shorten the text, or raise buckets.{what if sizes else 'max_' + what}"
        )

    def check(self, prompt: EncodedPrompt, *, name: str = "prompt") -> None:
        """Raises PromptTooLargeError if the prompt does not fit; ``name`` tells which."""
        self.fit("tokens", len(prompt.tokens), name=name)
        if prompt.frames:
            self.fit("frames", len(prompt.frames), name=name)
            self.fit("patches", max(len(frame) for frame in prompt.frames), name=name)


@dataclass(frozen=True, kw_only=True)
class PaddedSizes:
    """What a batch measures: tokens of a prompt, frames of a prompt, patches of a frame, numbers of a patch; the last
    three are 0 where no prompt has a frame."""

    tokens: int = 0
    frames: int = 0
    patches: int = 0
    numbers: int = 0


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

    batch_size: B; missing rows become padding groups of length 0 (default: as many as there are prompts).
    names: what to call each prompt in an error.
    Returns a PromptBatch of numpy arrays; ``vision`` is None if no prompt has a frame.

    Raises:
        PromptTooLargeError: a prompt beyond the largest bucket, by name.
        ValueError: no prompts, more than batch_size, pixels of different scales, or a patch bucket that
            merge_size**2 does not divide.
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
        raise ValueError(
            f"a patch bucket of {sizes.patches} is no multiple of {merge_size**2} patches per visual token"
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
