"""What a user message is made of, whichever family reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TextPart:
    """Text of a message. It may not contain a special token of the tokenizer."""

    text: str


@dataclass(frozen=True)
class ImagePart:
    """An image, uint8 [H, W, 3] RGB."""

    image: np.ndarray


@dataclass(frozen=True)
class VideoPart:
    """The sampled frames of a video.

    frames: uint8 [T, H, W, 3] RGB, T >= 1; timestamps: T seconds from the start of the video.
    resized: the frames already have the size that the processor's ``video_frame_size`` gives for them.
    """

    frames: np.ndarray
    timestamps: Sequence[float]
    resized: bool = False


Part = TextPart | ImagePart | VideoPart
