"""Reading the benchmarks' public files as they are, and finding the pictures and videos that they name, wherever those
were unpacked."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from vcap_jax.evals.protocol import EvaluatorError
from vcap_jax.system.json_values import JsonDict, parse_json

logger = logging.getLogger(__name__)


class DataMissing(EvaluatorError):
    """A file of a benchmark's that is not there, or not as its authors publish it."""


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
        return self._of(self._below.get(last.name), last) or self._of(self._below.get(stem), last)

    def _of(self, paths: Sequence[Path] | None, name: Path) -> Path | None:
        """The one of several that lies where the table says, else the first; that there are several is told."""
        if not paths:
            return None
        folders = name.parent.parts
        in_place = (
            [path for path in paths if path.parent.parts[-len(folders) :] == folders] if folders else []
        )
        left = in_place or list(paths)
        if len({path.stat().st_size for path in left}) > 1:
            logger.warning("%s: %s is taken, and there is also %s, another file", name, left[0], left[1])
        return left[0]

    def expected(self, name: str) -> Path:
        """The file, or the path where it would be.

        A benchmark can be scored from captions alone, so a missing file is no error here: whoever opens it names it.
        """
        return self.found(name) or self._root / self._folders[0] / name

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """Every file of the kind by its name, and without its ending where no whole name is that; in order of their
        paths."""
        names, stems = defaultdict[str, list[Path]](list), defaultdict[str, list[Path]](list)
        for path in sorted(self._root.rglob("*")):
            if path.suffix.lower() in self._endings and path.is_file():
                names[path.name].append(path)
                stems[path.stem].append(path)
        return {**stems, **names}


class Folder:
    """A benchmark's files. path: where the user put them. about: name of the benchmark. source: where they come from
    and under which licence, for messages."""

    def __init__(self, path: Path, about: str, source: str) -> None:
        self.path, self._about, self._source = path, about, source
        if not path.is_dir():
            raise self.wrong(path, "there is no such folder")

    def wrong(self, where: object, what: str) -> DataMissing:
        """The error for a file that is not there, or not as it is published."""
        return DataMissing(f"{self._about}: {where}: {what}. {self._source}")

    def file(self, *names: str) -> Path:
        """The first of several files or folders that is there, by its path in the folder. Raises DataMissing."""
        for name in names:
            if (self.path / name).exists():
                return self.path / name
        beside = "" if len(names) == 1 else f", nor {', '.join(names[1:])}"
        raise self.wrong(self.path / names[0], f"there is no such file{beside}")

    def objects(self, path: Path) -> Iterator[tuple[str, JsonDict]]:
        """("FILE:LINE", object) for each line of a JSON Lines file. Raises DataMissing."""
        try:
            with path.open(encoding="utf-8-sig") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield f"{path}:{number}", self._object(line, f"{path}:{number}")
        except (OSError, UnicodeDecodeError) as error:
            raise self.wrong(path, f"cannot be read ({error})") from error

    def object(self, path: Path) -> JsonDict:
        """The JSON object that a file is. Raises DataMissing."""
        return self._object(path.read_bytes(), path)

    def _object(self, text: str | bytes, where: Path | str) -> JsonDict:
        try:
            value = parse_json(text)
        except ValueError as error:
            raise self.wrong(where, f"not valid JSON ({error})") from error
        if not isinstance(value, dict):
            raise self.wrong(where, f"a {type(value).__name__}, where a JSON object is wanted")
        return value

    def text(self, row: JsonDict, key: str, where: str) -> str:
        """A text of a row. Raises DataMissing."""
        value = row.get(key)
        if not isinstance(value, str):
            raise self.wrong(where, f'"{key}" is {value!r}, where a text is wanted')
        return value

    def texts(self, row: JsonDict, key: str, where: str) -> tuple[str, ...]:
        """A list of texts of a row. Raises DataMissing."""
        value = row.get(key)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(where, f'"{key}" is {value!r:.80}, where a list of texts is wanted')
        return tuple(str(one) for one in value)

    def media(self, kind: Literal["image", "video"], *folders: str) -> MediaFiles:
        """Its pictures or videos. folders: where they usually are, see ``MediaFiles``."""
        return MediaFiles(self.path, kind, *folders)

    def picture(self, files: MediaFiles, name: str) -> Path:
        """A picture that the judge is shown, so that it must be there. Raises DataMissing."""
        path = files.found(name)
        if path is None:
            raise self.wrong(files.expected(name), "there is no such picture, with an ending or without")
        return path
