"""The input side: a picture is sixteen squares of 8 x 8 pixels, and a video as many for each of its frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.models.recurrent_family.model import Prompts
from vcap_jax.models.buckets import Buckets, PaddedSizes
from vcap_jax.models.errors import CheckpointError, InputError
from vcap_jax.models.family import VisualBudget
from vcap_jax.models.message import ImagePart, Part, TextPart

PICTURE = "<|image_pad|>"
SQUARES, SIDE = 16, 32
"""Of a picture, and its side in pixels."""
MOST_FRAMES = 4


@dataclass(frozen=True)
class Encoded:
    """tokens: [P]. squares: uint8 [V, 192]."""

    tokens: np.ndarray
    squares: np.ndarray


@dataclass(frozen=True)
class Sampling:
    most: int

    def sample_indices(self, total_frames: int, source_fps: float) -> np.ndarray:
        if total_frames < 1 or not source_fps > 0:
            raise InputError("a video without frames or without a frame rate")
        return np.unique(
            np.linspace(0, total_frames - 1, min(total_frames, self.most)).round().astype(np.int64)
        )


class SquareProcessor:
    def __init__(self, tokenizer: Any, budget: VisualBudget) -> None:
        self.tokenizer = tokenizer
        self.video = Sampling(budget.max_frames or MOST_FRAMES)
        self.picture_token_id = tokenizer.convert_tokens_to_ids(PICTURE)
        self.eos_token_ids = (int(tokenizer.eos_token_id),)
        self.pad_token_id = int(tokenizer.pad_token_id)
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.banned_token_ids = tuple(sorted(special - set(self.eos_token_ids)))

    @classmethod
    def from_folder(cls, folder: Path, budget: VisualBudget) -> SquareProcessor:
        from transformers import AutoTokenizer

        if not (folder / "tokenizer.json").is_file():
            raise CheckpointError(f"{folder} has no tokenizer.json: restore it from the checkpoint")
        return cls(AutoTokenizer.from_pretrained(str(folder)), budget)

    def save_pretrained(self, path: str | Path) -> None:
        self.tokenizer.save_pretrained(str(path))

    def video_frame_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        if min(frames, height, width) < 1:
            raise InputError("an empty video")
        return SIDE, SIDE

    def resize(self, picture: np.ndarray, height: int, width: int) -> np.ndarray:
        return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))

    def suffix(self, text: str) -> np.ndarray:
        return np.asarray(self.tokenizer(text + "\n", add_special_tokens=False)["input_ids"], np.int32)

    def without_suffix(self, prompt: Encoded, suffix: np.ndarray) -> Encoded:
        return Encoded(prompt.tokens[: -len(suffix)], prompt.squares)

    def encode(self, content: Sequence[Part]) -> Encoded:
        tokens: list[int] = []
        squares = [np.zeros((0, 192), np.uint8)]
        for part in content:
            if isinstance(part, TextPart):
                tokens += self.suffix(part.text).tolist()
                continue
            frames = [part.image] if isinstance(part, ImagePart) else list(part.frames)
            for frame in frames:
                side = SIDE // 4
                cut = self.resize(frame, SIDE, SIDE).reshape(4, side, 4, side, 3)
                squares.append(cut.transpose(0, 2, 1, 3, 4).reshape(SQUARES, -1))
                tokens += [self.picture_token_id] * SQUARES
        return Encoded(np.asarray(tokens, np.int32), np.concatenate(squares))

    def padded_sizes(
        self, prompts: Sequence[Encoded], buckets: Buckets, names: Sequence[str] | None = None
    ) -> PaddedSizes:
        names = names or [f"prompt {i}" for i in range(len(prompts))]
        named = list(zip(prompts, names, strict=True))
        return PaddedSizes(
            tokens=max((buckets.fit("tokens", len(p.tokens), name=n) for p, n in named), default=0),
            frames=max((len(p.squares) // SQUARES for p in prompts), default=0),
        )

    def collate(
        self,
        prompts: Sequence[Encoded],
        buckets: Buckets,
        *,
        batch_size: int | None = None,
        names: Sequence[str] | None = None,
        sizes: PaddedSizes | None = None,
    ) -> Prompts:
        rows = batch_size or len(prompts)
        sizes = sizes or self.padded_sizes(prompts, buckets, names)
        tokens, lengths = np.zeros((rows, sizes.tokens), np.int32), np.zeros(rows, np.int32)
        vision = np.zeros((rows, sizes.frames * SQUARES, 192), np.uint8)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt.tokens)], lengths[row] = prompt.tokens, len(prompt.tokens)
            vision[row, : len(prompt.squares)] = prompt.squares
        return Prompts(tokens, lengths, vision if sizes.frames else None)
