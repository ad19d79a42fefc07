"""Finding the pictures and videos that a benchmark's tables name, wherever they were unpacked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi")


class MediaFiles:
    """The files below a folder, by name. usual: the folder where a file that is not there would be.

    A benchmark can be scored from captions alone, so a missing file is no error here: whoever opens it names it.
    """

    def __init__(self, root: Path, *, usual: str, suffixes: Iterable[str] | None = None) -> None:
        wanted = None if suffixes is None else {suffix.lower() for suffix in suffixes}
        self._usual = root / usual
        self._by_name: dict[str, Path] = {}
        self._by_stem: dict[str, Path] = {}
        for path in sorted(root.rglob("*")):
            if (wanted is None or path.suffix.lower() in wanted) and path.is_file():
                self._by_name.setdefault(path.name, path)
                self._by_stem.setdefault(path.stem, path)

    def named(self, name: str) -> Path:
        """The file of that name."""
        return self._by_name.get(name, self._usual / name)

    def with_stem(self, stem: str, suffix: str = ".mp4") -> Path:
        """The file of that name without its suffix, whatever suffix it has."""
        return self._by_stem.get(stem, self._usual / f"{stem}{suffix}")
