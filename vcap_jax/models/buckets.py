"""The few sizes that prompts are padded to, so that the compiled programs are few."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from vcap_jax.configuration import settings
from vcap_jax.models.errors import PromptTooLargeError

TILE = 128
"""Sizes below a limit are whole tiles of the attention kernels where the multiple is: caches are copied otherwise."""

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
    """The most tokens of a prompt where they are rounded up; 0 for no limit. Rounded up to 128, it is
    the last size."""
    max_frames: int = Field(default=0, ge=0)
    """The most frames of a prompt where they are rounded up; 0 for no limit."""
    max_patches: int = Field(default=0, ge=0)
    """The most patches of a frame where they are rounded up; 0 for no limit."""

    def fit(self, what: str, size: int, *, name: str = "prompt") -> int:
        """The padded size for ``size`` tokens, frames or patches (``what``). Raises PromptTooLargeError beyond the
        largest bucket; ``name`` tells whose."""
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
                rounded = _rounded_up(size, multiple)
                # Nothing is longer than the limit, so the last size need not be a whole multiple.
                return min(rounded, _rounded_up(limit, math.gcd(multiple, TILE))) if limit else rounded
        of = " in a frame" if what == "patches" else ""
        raise PromptTooLargeError(
            f"{name} has {size} {what}{of}, the limit is {limit}: lower the pixel or frame budget, "
            f"shorten the text, or raise data.buckets.{what if sizes else 'max_' + what}"
        )


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class PaddedSizes:
    """What a batch measures: tokens of a prompt, frames of a prompt, patches of a frame, numbers of a patch; the last
    three are 0 where no prompt has a frame."""

    tokens: int = 0
    frames: int = 0
    patches: int = 0
    numbers: int = 0
