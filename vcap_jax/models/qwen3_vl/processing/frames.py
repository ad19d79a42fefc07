"""Which frames of a video are looked at, and the time each merged frame pair is announced with.

Equal to the public Qwen3-VL video processor's ``sample_frames`` and processor's timestamps (transformers
5.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vcap_jax.models.errors import InputError

if TYPE_CHECKING:
    from vcap_jax.models.qwen3_vl.processing.settings import VideoSettings


def sample_indices(total_frames: int, source_fps: float, settings: VideoSettings) -> np.ndarray:
    """Indices of the frames to look at: uniform over the whole video at about ``settings.fps``.

    total_frames: frames in the video; source_fps: its frames per second.
    Returns int64 [n], increasing, first and last frame included (for n > 1),
    n = min(max(total / source_fps * fps, min_frames), max_frames, total).

    Raises:
        InputError: no frames or a frame rate that is not positive.
    """
    if total_frames < 1:
        raise InputError("a video of no frames: give at least one")
    if not source_fps > 0:
        raise InputError(f"the video's frame rate is {source_fps}: it must be above 0")
    wanted = int(total_frames / source_fps * settings.fps)
    count = min(max(wanted, settings.min_frames), settings.max_frames, total_frames)
    return np.linspace(0, total_frames - 1, count).round().astype(np.int64)


def pair_timestamps(timestamps: Sequence[float], temporal_patch_size: int) -> list[float]:
    """Seconds at which each temporal patch is announced: the mean of its first and last frame's time.

    The last time is repeated until the frames fill the last patch, like the frames themselves.
    """
    times = [float(t) for t in timestamps]
    times += [times[-1]] * (-len(times) % temporal_patch_size)
    return [
        (times[i] + times[i + temporal_patch_size - 1]) / 2 for i in range(0, len(times), temporal_patch_size)
    ]


def timestamp_text(seconds: float) -> str:
    """How a time stands in the prompt, for example ``<12.3 seconds>``."""
    return f"<{seconds:.1f} seconds>"
