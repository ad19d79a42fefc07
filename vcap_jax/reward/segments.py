"""Timestamped segments of a video caption, and the random window of the local pass.

The canonical layout, which the policy's prompt asks for::

    [0.0 - 2.0] A red circle moves left at the top left.
    [2.0 - 4.0] A blue square stays still at the bottom right.
    Summary: ...

Captioners vary it, and these are read as well: clock times (``[00:00 - 00:02]``,
``[0:00:01.5 --> 0:00:02]``), units, other dashes and ``to``, bold or numbered headers, round or no brackets
at the start of a line (``0.0-2.0s: ...``, ``From 0 to 2 seconds, ...``, ``**Scene 1 (0:00-0:02)**``) or alone on one
(``## Segment 1: 0.0 - 2.0``), several headers in one line. A mere pair, ``[0, 2]``, is one at the start of a line only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vcap_jax.data.media import TimeWindow
from vcap_jax.system.digests import number_of


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A description of ``start .. end`` seconds of a video."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, kw_only=True)
class SegmentedCaption:
    """A parsed video caption: segments in the order written, and the overall summary, "" if there is none."""

    segments: tuple[Segment, ...]
    summary: str


# A caption may be thousands of spaces or digits. So every repetition is bounded or gives nothing back ("*+"): of blanks
# that several neighbours may take, all ways to share them out would be tried.
_TIME = r"(?:\d{1,2}:)?\d{1,3}:\d{1,2}(?:[.,]\d{1,3})?|\d{1,6}(?:\.\d{1,6})?"
_GAP = r"[ \t]{0,3}"
_UNIT = rf"(?:{_GAP}(?:seconds?|secs?|s)\b\.?)"
_TO = (
    rf"{_GAP}>?{_GAP}(?:(?P<span>-{{1,2}}>?|[\u2013\u2014\u2212~\u2192]|to\b|until\b)|and\b|,){_GAP}<?{_GAP}"
)
_LEAD = r"""^[ \t]*+(?:(?:[-*\u2022>]|\#++|\d++[.)])[ \t]++)*(?:\*\*|__)?
    (?:(?:segment|scene|shot|clip|part)[ \t]*+\d*[ \t]*+[:.,\u2013-]?[ \t]*+(?:\*\*|__)?[ \t]*+)?"""
_FLAGS = re.IGNORECASE | re.MULTILINE | re.VERBOSE
_BRACKETED = re.compile(
    rf"(?:{_LEAD})?[\[\u3010]{_GAP}(?P<start>{_TIME}){_UNIT}?{_TO}(?P<end>{_TIME}){_UNIT}?{_GAP}[\]\u3011]",
    _FLAGS,
)
# At the start of a line round brackets or none will do, but then something must tell a range of times from a
# mere pair of numbers ("2 - 3 people"): brackets, a unit, clock times, a colon after it, or that the line has no more.
_AT_LINE_START = re.compile(
    rf"""{_LEAD}(?:(?:from|between)[ \t]++)?
    (?P<open>[(<])?{_GAP}(?P<start>{_TIME})(?P<unit1>{_UNIT})?{_TO}(?P<end>{_TIME})(?P<unit2>{_UNIT})?[ \t]*+
    (?P<close>[)>])?(?P<colon>[ \t]*+(?:\*\*|__)?[ \t]*+[:\uff1a])?(?P<alone>[ \t]*+(?:\*\*|__)?[ \t\r]*+$)?""",
    _FLAGS,
)
_SUMMARY_LINE = re.compile(
    r"""^[ \t#>*_-]*+(?:(?:overall|global|video|final|brief|short)[ \t]++)?
    summary[ \t]*+(?:\*\*|__)?[ \t]*+(?:[:\uff1a\u2013-]|$)""",
    _FLAGS,
)
_SUMMARY_INLINE = re.compile(r"(?<=[\s.])Summary[ \t]*+:")
_HEADER_DECORATION = " \t\r\n*_:\uff1a,;|-\u2013\u2014"


def parse_segments(caption: str) -> SegmentedCaption:
    """Read a video caption. Never raises; text that is no segment and no summary is left out.

    Segments with nothing in them or with ``end <= start`` are left out too.
    """
    marks: dict[int, tuple[int, tuple[float, float] | None]] = {}  # start of header -> its end and times
    for match in _BRACKETED.finditer(caption):
        # Inside a line "[10, 20]" is rather a place in the picture than a range of times.
        if match["span"] is None and not _begins_line(caption, match.start()):
            continue
        marks[match.start()] = match.end(), (_seconds(match["start"]), _seconds(match["end"]))
    for match in _AT_LINE_START.finditer(caption):
        clock = ":" in match["start"] and ":" in match["end"]
        bracketed = match["open"] and match["close"]
        alone = match["span"] is not None and match["alone"] is not None
        if bracketed or match["colon"] or match["unit1"] or match["unit2"] or clock or alone:
            marks[match.start()] = match.end(), (_seconds(match["start"]), _seconds(match["end"]))
    for pattern in (_SUMMARY_LINE, _SUMMARY_INLINE):
        for match in pattern.finditer(caption):
            marks[match.start()] = match.end(), None

    segments: list[Segment] = []
    summary: list[str] = []
    begins = sorted(marks)
    for begin, following in zip(begins, [*begins, len(caption)][1:], strict=True):
        header_end, times = marks[begin]
        text = " ".join(caption[header_end:following].lstrip(_HEADER_DECORATION).split()).rstrip(" *_#")
        if times is None:
            summary.append(text)
        elif text and times[0] < times[1]:
            segments.append(Segment(start=times[0], end=times[1], text=text))
    return SegmentedCaption(segments=tuple(segments), summary=" ".join(part for part in summary if part))


def _begins_line(caption: str, position: int) -> bool:
    """Whether nothing but blanks stands before it on its line."""
    return not caption[caption.rfind("\n", 0, position) + 1 : position].strip()


def format_segments(segments: Sequence[Segment]) -> str:
    """Segments in the canonical layout, one a line."""
    return "\n".join(f"[{segment.start:.1f} - {segment.end:.1f}] {segment.text}" for segment in segments)


def select_segments(
    segments: Sequence[Segment], window: TimeWindow, min_overlap: float
) -> tuple[Segment, ...]:
    """The segments that belong to the window, in their order.

    min_overlap: least shared part of the shorter of segment and window; at 0 any common stretch will do.
    """
    chosen = []
    for segment in segments:
        shared = window.overlap(segment.start, segment.end)
        least = min_overlap * min(window.seconds, segment.end - segment.start)
        if shared > 0 and shared >= least - 1e-9:
            chosen.append(segment)
    return tuple(chosen)


def sample_window(
    *, seed: int, step: int, sample_id: str, duration: float, fraction: float, min_seconds: float
) -> TimeWindow:
    """A window of ``max(fraction * duration, min_seconds)`` seconds, at most the whole video, placed
    uniformly.

    The same (seed, step, sample_id) gives the same window on every machine.
    """
    if not 0 < duration < math.inf:
        raise ValueError(
            f"sample {sample_id!r}: a window needs a video's duration in seconds, not {duration}"
        )
    length = min(duration, max(fraction * duration, min_seconds))
    start = _uniform(seed, step, sample_id) * (duration - length)
    return TimeWindow(start=start, end=start + length)


def choose_window(segments: Sequence[Segment], *, seed: int, step: int, sample_id: str) -> TimeWindow:
    """The window of one of the segments, drawn uniformly in the way of :func:`sample_window`."""
    chosen = segments[int(_uniform(seed, step, sample_id) * len(segments))]
    return TimeWindow(start=chosen.start, end=chosen.end)


def _uniform(seed: int, step: int, sample_id: str) -> float:
    return (number_of(f"{seed}/{step}/{sample_id}") >> 11) / 2.0**53


def _seconds(time: str) -> float:
    total = 0.0
    for part in time.replace(",", ".").split(":"):
        total = total * 60 + float(part)
    return total
