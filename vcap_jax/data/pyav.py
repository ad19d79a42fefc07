"""Files of videos, opened by PyAV alike in all its releases."""

from __future__ import annotations

from pathlib import Path

import av

_TOLERANT = int(av.__version__.partition(".")[0]) >= 19
"""PyAV takes any title from here on, and no word about it."""


def opened(source: Path) -> av.container.InputContainer:
    """The file's container. Raises what PyAV does."""
    # FFmpeg takes what stands before a colon of a relative name for a protocol ("12:30.mp4").
    name = str(source.absolute())
    if _TOLERANT:
        return av.open(name)
    # A title need not be UTF-8 (AVI has no rule for it), and nobody reads it.
    return av.open(name, metadata_errors="replace")
