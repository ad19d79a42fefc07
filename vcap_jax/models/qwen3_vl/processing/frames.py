"""The time that each merged frame pair of a video is announced with, as by the public processor (transformers 5.23)."""

from __future__ import annotations

from collections.abc import Sequence


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
