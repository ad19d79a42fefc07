"""Files of videos, opened by PyAV alike in all its releases."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import av
from av.format import formats_available

_TOLERANT = int(av.__version__.partition(".")[0]) >= 19
"""PyAV takes any title from here on, and no word about it."""


# Of lists of other files, which a manifest has not named; of a stream that goes on FFmpeg waits for more for ever.
_LISTS = frozenset({"concat", "dash", "hls", "image2", "image2pipe", "imf", "lavfi", "rtp", "rtsp", "sdp"})


@cache
def _formats() -> dict[str, str]:
    """An option of FFmpeg that allows all formats that hold a video themselves."""
    known = sorted(name for name in formats_available if not _LISTS & set(name.split(",")))
    return {"format_whitelist": ",".join(known)}


def opened(source: Path) -> av.container.InputContainer:
    """The file's container. Raises what PyAV does, and ArgumentError for a list of other files, such as a playlist."""
    # FFmpeg takes what stands before a colon of a relative name for a protocol ("12:30.mp4").
    name = str(source.absolute())
    # A title need not be UTF-8 (AVI has no rule for it), and nobody reads it.
    more = {} if _TOLERANT else {"metadata_errors": "replace"}
    open_container: Callable[..., av.container.InputContainer] = av.open
    return open_container(name, container_options=_formats(), **more)
