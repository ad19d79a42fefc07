"""Pictures that nobody decodes: a picture, and clips of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vcap_jax.data.media import JudgeFrame, JudgeVideo, TimeWindow, frames_in_window


@dataclass(frozen=True)
class NamedMedia:
    """Frames that are their own names, at ``times``."""

    modality: Literal["image", "video"]
    times: Sequence[float | None] = (None,)
    duration: float = 0.0

    def frames(self, window: TimeWindow | None = None) -> list[JudgeFrame]:
        frames = [JudgeFrame(url=f"data:frame{i}", seconds=t) for i, t in enumerate(self.times)]
        if window is None:
            return frames
        return [frames[i] for i in frames_in_window([t for t in self.times if t is not None], window)]

    def video(self, window: TimeWindow | None = None) -> JudgeVideo:
        raise AssertionError("a server that is not vLLM is sent frames")


PICTURE = NamedMedia("image")


def clip(seconds: float) -> NamedMedia:
    """Two frames a second."""
    return NamedMedia("video", [0.5 * i for i in range(max(int(2 * seconds), 1))], seconds)
