"""Pictures of a sample as the judge receives them: PNG or JPEG, as ``data:`` URLs, with times for a video.

They are compressed as they are decoded, so a batch of long videos stays small in memory.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from vcap_jax.reward.media import JudgeFrame, TimeWindow, frames_in_window

SMALL_EDGE = 128


@dataclass(frozen=True, kw_only=True)
class JudgeMediaSettings:
    """How pictures are sent to the judge.

    max_edge: the longer side is scaled down to this many pixels; 0 leaves pictures as they are.
    format: "auto" is PNG up to 128 x 128 pixels and JPEG beyond.
    quality: of JPEG, 1 to 95.
    """

    max_edge: int = 0
    format: Literal["auto", "png", "jpeg"] = "auto"
    quality: int = 90

    def __post_init__(self) -> None:
        if self.max_edge < 0:
            raise ValueError(f"max_edge is {self.max_edge}: give a number of pixels, or 0 for no limit")
        if not 1 <= self.quality <= 95:
            raise ValueError(f"quality is {self.quality}: give a JPEG quality from 1 to 95")


@dataclass(frozen=True, kw_only=True)
class EncodedPicture:
    """A compressed picture; seconds: its time in the video, None for an image."""

    data: bytes
    mime: str
    seconds: float | None = None

    def as_frame(self) -> JudgeFrame:
        url = f"data:{self.mime};base64,{base64.b64encode(self.data).decode('ascii')}"
        return JudgeFrame(url=url, seconds=self.seconds)


@dataclass(frozen=True, kw_only=True)
class EncodedMedia:
    """What the judge looks at for one group (implements ``vcap_jax.reward.media.JudgeMedia``).

    duration: seconds of the video, 0.0 for images.
    """

    modality: Literal["image", "video"]
    duration: float
    pictures: tuple[EncodedPicture, ...]

    def frames(self, window: TimeWindow | None = None) -> Sequence[JudgeFrame]:
        """All pictures, or those of a video inside ``window`` (the nearest to its middle if none is)."""
        chosen: Sequence[EncodedPicture] = self.pictures
        if window is not None:
            seconds = [picture.seconds or 0.0 for picture in self.pictures]
            chosen = [self.pictures[i] for i in frames_in_window(seconds, window)]
        return [picture.as_frame() for picture in chosen]


def encode_picture(
    pixels: np.ndarray, settings: JudgeMediaSettings, *, seconds: float | None = None
) -> EncodedPicture:
    """Scales (if asked) and compresses a uint8 [H, W, 3] RGB picture."""
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if settings.max_edge and longest > settings.max_edge:
        scale = settings.max_edge / longest
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    kind = settings.format
    if kind == "auto":
        kind = "png" if max(image.size) <= SMALL_EDGE else "jpeg"
    buffer = io.BytesIO()
    if kind == "png":
        image.save(buffer, "PNG", compress_level=6)
    else:
        image.save(buffer, "JPEG", quality=settings.quality)
    return EncodedPicture(data=buffer.getvalue(), mime=f"image/{kind}", seconds=seconds)
