"""Finding the pictures and videos that a benchmark's tables name, wherever they were unpacked."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

_ENDINGS = {
    "image": (".jpg", ".jpeg", ".png", ".webp"),
    "video": (".mp4", ".mkv", ".webm", ".mov", ".avi", ".gif"),
}


class MediaFiles:
    """The pictures or videos below ``root``, by name.

    folders: where they usually are, looked into first, in this order; after them whatever lies below the root.
    """

    def __init__(self, root: Path, kind: Literal["image", "video"], *folders: str) -> None:
        self._root, self._endings, self._folders = root, _ENDINGS[kind], folders

    def found(self, name: str) -> Path | None:
        """The file that a table calls ``name``, with or without its ending; None where there is none."""
        for folder in self._folders:
            for ending in ("", *self._endings, *map(str.upper, self._endings)):
                path = self._root / folder / f"{name}{ending}"
                if path.is_file():
                    return path
        last = Path(name)
        # Another ending than the table's is one, but what follows a dot in "v1.5" is none.
        stem = last.stem if last.suffix.lower() in self._endings else last.name
        return self._below.get(last.name) or self._below.get(stem)

    def expected(self, name: str) -> Path:
        """The file, or the path where it would be.

        A benchmark can be scored from captions alone, so a missing file is no error here: whoever opens it names it.
        """
        return self.found(name) or self._root / self._folders[0] / name

    @cached_property
    def _below(self) -> dict[str, Path]:
        """Every file of the kind by its name, and without its ending; the first by its path goes before others."""
        names: dict[str, Path] = {}
        paths = [path for path in sorted(self._root.rglob("*")) if path.suffix.lower() in self._endings]
        for path in paths:
            if path.is_file():
                names.setdefault(path.name, path)
        for path in paths:
            names.setdefault(path.stem, path)
        return names
