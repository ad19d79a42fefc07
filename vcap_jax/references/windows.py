"""Windows of videos that get references of their own, drawn as the local term of the reward draws them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from vcap_jax.data.manifest import Sample
from vcap_jax.data.media import TimeWindow
from vcap_jax.reward.config import LocalConfig
from vcap_jax.reward.segments import parse_segments, sample_window


class WindowDraw:
    """Draws window k of a video: the same for the same seed, sample and k.

    Items are samples of their own, named ``ID#k``, so that they go through the same pipeline as whole ones. What
    was drawn is kept by item, for a video's length is known only when its file has been read.
    """

    def __init__(self, local: LocalConfig, *, seed: int, prompt: str) -> None:
        self._local, self._seed, self._prompt = local, seed, prompt
        self._drawn: dict[str, TimeWindow] = {}

    def items(self, samples: Sequence[Sample], per_video: int, skip: int) -> list[Sample]:
        """``per_video`` items of every sample but for the first ``skip``."""
        items = [
            dataclasses.replace(sample, id=f"{sample.id}#{k}", prompt=self._prompt)
            for sample in samples
            for k in range(per_video)
        ]
        return items[skip:]

    def __call__(self, item: Sample, duration: float) -> TimeWindow:
        """The item's window; called by the threads that read files."""
        identity, _, k = item.id.rpartition("#")
        window = sample_window(
            seed=self._seed,
            step=int(k),
            sample_id=identity,
            duration=duration,
            fraction=self._local.fraction,
            min_seconds=self._local.min_seconds,
        )
        self._drawn[item.id] = window
        return window

    def drawn(self, item: Sample) -> TimeWindow:
        return self._drawn[item.id]


def description(caption: str) -> str:
    """The text of a window's caption without its times, which count from the window's beginning.

    A captioner trained on whole videos divides a window into segments as well: their texts are joined.
    """
    segments = parse_segments(caption).segments
    return " ".join(segment.text for segment in segments) if segments else caption.strip()
