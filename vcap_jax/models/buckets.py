"""The few sizes that prompts are padded to, so that the compiled programs are few."""

from __future__ import annotations

from dataclasses import dataclass

from vcap_jax.models.errors import PromptTooLargeError

_SINGULAR = {"tokens": "token", "frames": "frame", "patches": "patch"}


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The sizes prompts are padded to; each combination in use compiles once.

    tokens, frames, patches: allowed sizes of P (prompt tokens), F (frames of a prompt) and L (patches of a frame, in
        multiples of merge_size**2), ascending; where the list is empty, sizes are rounded up to the multiple instead.
    token_multiple, frame_multiple, patch_multiple: what sizes are rounded up to.
    max_tokens, max_frames, max_patches: the largest size where sizes are rounded up; 0 for none.
    """

    tokens: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    patches: tuple[int, ...] = ()
    token_multiple: int = 128
    frame_multiple: int = 1
    patch_multiple: int = 64
    max_tokens: int = 0
    max_frames: int = 0
    max_patches: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "frames", "patches"):
            sizes = getattr(self, name)
            if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
                raise ValueError(f"buckets.{name} is {sizes}: give ascending positive whole numbers")
        for name in ("token_multiple", "frame_multiple", "patch_multiple"):
            if getattr(self, name) < 1:
                raise ValueError(f"buckets.{name} is {getattr(self, name)}: give a positive whole number")
        for name in ("max_tokens", "max_frames", "max_patches"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"buckets.{name} is {getattr(self, name)}: give a whole number, or 0 for no limit"
                )

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


@dataclass(frozen=True, kw_only=True)
class PaddedSizes:
    """What a batch measures: tokens of a prompt, frames of a prompt, patches of a frame, numbers of a patch; the last
    three are 0 where no prompt has a frame."""

    tokens: int = 0
    frames: int = 0
    patches: int = 0
    numbers: int = 0
