"""The visual side of a group, as the reward needs it: encoded pictures, with times where they have any.

The reward never decodes files: it is handed pictures and videos as an OpenAI-compatible server understands them
(``judge_media.EncodedMedia``), normally as ``data:`` URLs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TimeWindow:
    """A stretch of a video in seconds, ``start`` included and ``end`` excluded."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a time window needs 0 <= start < end, not {self.start} .. {self.end}")

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def overlap(self, start: float, end: float) -> float:
        """Seconds shared with ``start .. end``, 0 where they do not meet."""
        return max(0.0, min(self.end, end) - max(self.start, start))


@dataclass(frozen=True, kw_only=True)
class JudgeFrame:
    """One picture for the judge.

    url: what goes into ``image_url.url``, e.g. ``data:image/png;base64,...``.
    seconds: its time in the video; None for an image.
    """

    url: str
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeVideo:
    """A video, or a stretch of one, as the judge's server takes it: JPEG frames with their places in time.

    frames: each base64 text of a JPEG, all of one size. indices: which frames of the source they are,
    ascending. fps: of the source, so that ``indices[k] / fps`` is the time of frame k in seconds; a source of
    variable rate is counted in ticks of its own, 1000 per second.
    total_frames, duration: of the whole source, in frames (or ticks) and seconds.
    """

    frames: tuple[str, ...]
    indices: tuple[int, ...]
    fps: float
    total_frames: int
    duration: float

    def __post_init__(self) -> None:
        if not self.frames or len(self.frames) != len(self.indices):
            raise ValueError(f"a video of {len(self.frames)} frames with {len(self.indices)} indices")
        if not self.fps > 0 or not self.indices[-1] < self.total_frames:
            raise ValueError(
                f"a video of {self.total_frames} frames at {self.fps} fps has no frame {self.indices[-1]}"
            )


def frames_in_window(seconds: Sequence[float], window: TimeWindow) -> list[int]:
    """Indices of the frame times inside ``window``; the nearest to its middle where none is inside.

    seconds: frame times in ascending order, at least one.
    """
    if not seconds:
        raise ValueError("a video without frames has no window to select from")
    inside = [i for i, t in enumerate(seconds) if window.start <= t < window.end]
    if inside:
        return inside
    middle = (window.start + window.end) / 2
    return [min(range(len(seconds)), key=lambda i: abs(seconds[i] - middle))]
