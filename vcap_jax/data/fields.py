"""Interlaced H.264 whose frames are coded as two fields each, as camcorders and broadcasters do.

FFmpeg gives such a frame as two packets wherever the file does not join them: in MPEG-TS, and in MP4 or Matroska that
was made of that without encoding. H.264 alone is concerned: FFmpeg's parser joins the fields of MPEG-2, and its
decoder shows each field of HEVC as a frame of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import av

_OF_A_FRAME = 0.6
"""Two times that are closer than this share of a frame are those of its fields: half a frame, as files round it. Films
on interlaced video hold frames for three fields and two in turn, which is two thirds."""


def coded_as_fields(codec: str, frame: av.VideoFrame) -> bool:
    """Whether a video that begins with this frame may hold packets that are fields."""
    return codec == "h264" and bool(frame.interlaced_frame)


def close_as_fields(times: Sequence[int], first: av.VideoFrame, second: av.VideoFrame | None) -> bool:
    """Whether packets, of which these are the ascending times, are fields: all of them, or some.

    first, second: what the decoder shows first.
    """
    if second is None or second.pts is None or first.pts is None:
        return len(times) > 1
    return any(b - a < _OF_A_FRAME * (second.pts - first.pts) for a, b in pairwise(times))


def decoded_times(frames: Iterable[av.VideoFrame]) -> tuple[int, list[int] | None]:
    """How many frames these are, and their times if each has one and they ascend."""
    times = [frame.pts for frame in frames]
    known = [time for time in times if time is not None]
    ascending = len(known) == len(times) and all(a < b for a, b in pairwise(known))
    return len(times), known if ascending else None
