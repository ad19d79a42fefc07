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
from pydantic import Field

from vcap_jax.configuration import settings
from vcap_jax.data.errors import MediaError
from vcap_jax.data.media import JudgeFrame, JudgeVideo, TimeWindow, frames_in_window

SMALL_EDGE = 128
_TICKS_PER_S = 1000.0
_LONGEST_JPEG = 65_500
"""Pixels of a side, the most that libjpeg writes."""
_PNG_LEVEL = 3
"""Of zlib's nine. The usual 6 takes three times as long for files that are 6% smaller."""


@settings
class JudgeMediaSettings:
    """How pictures are sent to the judge."""

    max_edge: int = Field(default=0, ge=0)
    """The longer side is scaled down to this many pixels; 0 leaves pictures as they are."""
    format: Literal["auto", "png", "jpeg"] = "auto"
    """File format; "auto" is PNG up to 128 x 128 pixels and JPEG beyond."""
    quality: int = Field(default=90, ge=1, le=95)
    """Quality of JPEG."""


@dataclass(frozen=True, kw_only=True)
class EncodedPicture:
    """A compressed picture.

    seconds: its time in the video, None for an image. index: which frame of the video it is.
    """

    data: bytes
    mime: str
    seconds: float | None = None
    index: int | None = None

    def as_frame(self) -> JudgeFrame:
        url = f"data:{self.mime};base64,{base64.b64encode(self.data).decode('ascii')}"
        return JudgeFrame(url=url, seconds=self.seconds)


@dataclass(frozen=True, kw_only=True)
class VideoSource:
    """The video that frames were taken from.

    frames: how many it has; fps: their rate, None where it varies.
    """

    frames: int
    fps: float | None


@dataclass(frozen=True, kw_only=True)
class EncodedMedia:
    """What the judge looks at for one group.

    duration: seconds of the video, 0.0 for images. source: of a video. quality: of JPEGs that have to be made
    of pictures that are none.
    """

    modality: Literal["image", "video"]
    duration: float
    pictures: tuple[EncodedPicture, ...]
    source: VideoSource | None = None
    quality: int = 90

    def frames(self, window: TimeWindow | None = None) -> Sequence[JudgeFrame]:
        """All pictures, or those of a video inside ``window`` (the nearest to its middle if none is)."""
        return [picture.as_frame() for picture in self._chosen(window)]

    def video(self, window: TimeWindow | None = None) -> JudgeVideo:
        """The same frames as one video.

        At a constant rate they keep their indices in the file. At a variable one an index cannot tell the
        time, and milliseconds are counted instead of frames.

        Raises ValueError: not a video, or its source or a frame's place in it is not known.
        """
        chosen = self._chosen(window)
        seconds = [picture.seconds for picture in chosen if picture.seconds is not None]
        indices = [picture.index for picture in chosen if picture.index is not None]
        if self.source is None or not len(seconds) == len(indices) == len(chosen):
            raise ValueError("frames without their places in a source are no video")
        fps, total = self.source.fps, self.source.frames
        if fps is None:
            fps = _TICKS_PER_S
            indices = [round(t * fps) for t in seconds]
            total = max(round(self.duration * fps), indices[-1] + 1)
        return JudgeVideo(
            frames=tuple(base64.b64encode(self._jpeg(picture)).decode("ascii") for picture in chosen),
            indices=tuple(indices),
            fps=fps,
            total_frames=total,
            duration=self.duration,
        )

    def _chosen(self, window: TimeWindow | None) -> Sequence[EncodedPicture]:
        if window is None:
            return self.pictures
        seconds = [picture.seconds or 0.0 for picture in self.pictures]
        return [self.pictures[i] for i in frames_in_window(seconds, window)]

    def _jpeg(self, picture: EncodedPicture) -> bytes:
        if picture.mime == "image/jpeg":
            return picture.data
        buffer = io.BytesIO()
        # Small pictures come here as PNG; colours are kept at full resolution, of which they have little.
        Image.open(io.BytesIO(picture.data)).convert("RGB").save(
            buffer, "JPEG", quality=self.quality, subsampling=0
        )
        return buffer.getvalue()


def encode_picture(
    pixels: np.ndarray,
    settings: JudgeMediaSettings,
    *,
    seconds: float | None = None,
    index: int | None = None,
) -> EncodedPicture:
    """Scales (if asked) and compresses a uint8 [H, W, 3] RGB picture. seconds, index: of a video's frame.

    Raises MediaError for a picture that its format cannot hold.
    """
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if settings.max_edge and longest > settings.max_edge:
        scale = settings.max_edge / longest
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    kind = settings.format
    if kind == "auto":
        kind = "png" if max(image.size) <= SMALL_EDGE else "jpeg"
    if kind == "jpeg" and max(image.size) > _LONGEST_JPEG:
        raise MediaError(
            f"a picture of {image.width} x {image.height} pixels, where a JPEG for the judge has at most "
            f"{_LONGEST_JPEG} a side: scale the picture down or set data.judge_media.max_edge"
        )
    buffer = io.BytesIO()
    if kind == "png":
        image.save(buffer, "PNG", compress_level=_PNG_LEVEL)
    else:
        image.save(buffer, "JPEG", quality=settings.quality)
    return EncodedPicture(data=buffer.getvalue(), mime=f"image/{kind}", seconds=seconds, index=index)
