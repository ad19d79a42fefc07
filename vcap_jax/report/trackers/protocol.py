"""What a tracker is, and what it is told of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from PIL import Image


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """name: for people. id: never that of another run; it is kept in the run folder, so that a resumed run goes on in
    the same place. folder: of the run. config: its settings. steps: those that the tracker has already."""

    name: str
    id: str
    project: str
    group: str | None
    folder: Path
    config: Mapping[str, object]
    steps: int = 0


class Tracker(Protocol):
    """A run in a dashboard, open. Whatever fails raises; the run goes on without it.

    rewinds: whether what it has of steps after ``TrackedRun.steps`` is replaced when they are logged again. One that
    does not is never given a step twice.
    """

    rewinds: ClassVar[bool]

    def __init__(self, run: TrackedRun) -> None: ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step."""
        ...

    def picture(self, step: int, name: str, picture: Image.Image, text: str) -> None:
        """A sample: its picture and, in Markdown, what was written about it. name: of the place that it is shown in."""
        ...

    def flush(self) -> None:
        """What was given is safe from a kill of this process, as far as the tracker can."""
        ...

    def close(self) -> None:
        """Ends it; waits for what is still sent."""
        ...
