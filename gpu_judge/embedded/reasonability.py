"""Reasonability of a video caption's segmentation (paper, Instruction 3). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

BASE = 0.3
"""What a segmentation that fills the video is worth with every boundary wrong."""
_TOLERANCE_S = 0.25
"""Within which a boundary meets a cut."""


def reasonability(
    segments: Sequence[tuple[float, float]],
    shots: Sequence[tuple[float, float]],
    coherence: float,
) -> tuple[int, tuple[str, ...]]:
    """Scores a segmentation.

    Three factors: how much of the video the segments fill without overlap, how well their inner boundaries
    meet the visible cuts (F1, or ``1 / (1 + boundaries)`` for a video without cuts, above ``BASE``), and how
    coherent the text is.

    Args:
        segments: start and end in seconds, as written.
        shots: start and end in seconds of the shots seen, contiguous and in order.
        coherence: 0 to 1, the share of the text that describes something new.

    Returns:
        The score from 0 to 10 and the problems in words. Without segments, or without shots to compare with,
        0.
    """
    if not segments or not shots:
        return 0, ("has no timed segments",)
    first, last = shots[0][0], shots[-1][1]
    filled = _filled(segments, first, last)
    cuts = [start for start, _ in shots[1:]]
    inner = {t for segment in segments for t in segment if first + _TOLERANCE_S < t < last - _TOLERANCE_S}
    met = sum(any(abs(t - cut) <= _TOLERANCE_S for t in inner) for cut in cuts)
    fitting = sum(any(abs(t - cut) <= _TOLERANCE_S for cut in cuts) for t in inner)
    if cuts:
        recall, precision = met / len(cuts), fitting / len(inner) if inner else 0.0
        fit = 2 * recall * precision / (recall + precision) if recall + precision else 0.0
    else:
        fit = 1 / (1 + len(inner))
    problems = []
    if filled < 0.99:
        problems.append("has segments that leave gaps, overlap or reach beyond the video")
    if met < len(cuts):
        problems.append("has no boundary of segments at a visible change of scene")
    if fitting < len(inner):
        problems.append("has segments that end where nothing changes")
    return math.floor(10 * filled * (BASE + (1 - BASE) * fit) * coherence + 0.5), tuple(problems)


def _filled(segments: Sequence[tuple[float, float]], first: float, last: float) -> float:
    """Time covered by at least one segment, over the longer of the video and all segments together."""
    written = sum(abs(end - start) for start, end in segments)
    covered, reached = 0.0, first
    for start, end in sorted(segments):
        begin, stop = max(start, reached), min(end, last)
        if stop > begin:
            covered += stop - begin
            reached = stop
    return covered / max(last - first, written)
