"""The tables of multiple-choice questions about images that VLMEvalKit publishes: one TSV file, pictures in it.

Columns: ``index``, ``image`` (base64 of the file), ``question``, ``A``, ``B``, ... (empty where a question has fewer
options), ``answer`` (a letter); often ``hint``, ``category``, ``l2-category``. An ``image`` of at most 64 characters is
the index of the row that holds the picture. Tables have hundreds of megabytes: they are read row by row, and each
picture is written to a file of its own, once.
"""

from __future__ import annotations

import base64
import binascii
import csv
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from vcap_jax.data.errors import ManifestError
from vcap_jax.evals.benchmarks.choices import LETTERS
from vcap_jax.system.files import replace_file

REFERENCE_CHARS = 64
"""An image cell of at most so many characters names another row."""

_EMPTY = ("", "nan")  # an absent cell, as pandas may have written it
_SIGNATURES = (
    (b"\x89PNG", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
)


@dataclass(frozen=True, kw_only=True)
class ChoiceRow:
    """A question. index: of its row. options: texts by letter. answer: the right letter. image: file of its picture.
    category: "" where the table has none."""

    index: str
    question: str
    options: Mapping[str, str]
    answer: str
    image: Path
    hint: str = ""
    category: str = ""


def read_table(path: Path, pictures: Path, say: Callable[[str], None]) -> list[ChoiceRow]:
    """The questions of a table, in its order; the pictures are written into the folder ``pictures``.

    A question whose right option is an empty cell (in tables that pandas wrote, "None") cannot be answered rightly: it
    is left out, which is said. Raises ManifestError for a file that is no such table, by row.
    """
    images: dict[str, Path] = {}
    rows: list[tuple[str, dict[str, str]]] = []
    for index, row in _rows(path):
        cell = row.pop("image").strip()
        if len(cell) > REFERENCE_CHARS:
            images[index] = _written(cell, pictures, f"{path}: row {index}")
        else:
            row["image"] = cell
        rows.append((index, row))
    found = {index: _question(index, row, images, path) for index, row in rows}
    if left_out := [index for index, question in found.items() if question is None]:
        say(
            f"{path}: of {len(left_out)} questions the right option is an empty cell, and they are left out: row "
            f"{', '.join(left_out[:5])}{', ...' if len(left_out) > 5 else ''}"
        )
    return [question for question in found.values() if question is not None]


def _question(index: str, row: Mapping[str, str], images: Mapping[str, Path], path: Path) -> ChoiceRow | None:
    """None for one whose right option is not there."""
    where = f"{path}: row {index}"
    holder = row.get("image", index)
    if holder not in images:
        raise ManifestError(
            f"{where}: its picture is that of row {holder!r}, which holds none: download the table again"
        )
    options = {letter: row[letter] for letter in LETTERS if _cell(row, letter)}
    answer = _cell(row, "answer").upper()
    if len(options) >= 2 and answer in set(LETTERS) - set(options):
        return None
    if len(options) < 2 or answer not in options:
        raise ManifestError(
            f"{where}: {len(options)} options and the answer {answer!r}, where a letter of two or more is wanted"
        )
    return ChoiceRow(
        index=index,
        question=row["question"],
        options=options,
        answer=answer,
        image=images[holder],
        hint=_cell(row, "hint"),
        category=_cell(row, "category"),
    )


def _cell(row: Mapping[str, str], name: str) -> str:
    value = (row.get(name) or "").strip()
    return "" if value.lower() in _EMPTY else value


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    seen: set[str] = set()
    try:
        with _long_cells(), path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t")
            if missing := {"index", "image", "question", "answer", "A", "B"} - set(reader.fieldnames or ()):
                raise ManifestError(
                    f"{path}: no column {', '.join(sorted(missing))}: this is no VLMEvalKit table"
                )
            for number, row in enumerate(reader, 1):
                index = (row["index"] or "").strip()
                if not index or row["image"] is None or row["answer"] is None:
                    raise ManifestError(f"{path}: row {number} is cut off: download the table again")
                if index in seen:
                    raise ManifestError(f"{path}: index {index} is there twice")
                seen.add(index)
                yield index, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ManifestError(f"{path}: not readable as a table ({error}): download it again") from error


@contextmanager
def _long_cells() -> Iterator[None]:
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _written(cell: str, folder: Path, where: str) -> Path:
    # A few tables write a list with one picture.
    if listed := re.fullmatch(r"\[\s*['\"]([A-Za-z0-9+/=\s]+)['\"]\s*\]", cell):
        cell = listed[1]
    try:
        content = base64.b64decode(cell, validate=True)
    except binascii.Error as error:
        raise ManifestError(f"{where}: its image is no base64 ({error}): download the table again") from error
    return write_picture(content, folder, where)


def write_picture(content: bytes, folder: Path, where: str) -> Path:
    """The file of a picture, named by its content, written unless it is there.

    Raises ManifestError for bytes that are no picture, and for a folder that cannot be written; ``where`` begins the
    message.
    """
    suffix = next((suffix for signature, suffix in _SIGNATURES if content.startswith(signature)), None)
    if suffix is None and content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        suffix = ".webp"
    if suffix is None:
        raise ManifestError(f"{where}: its image is no PNG, JPEG, WebP, GIF, BMP or TIFF")
    file = folder / f"{sha256(content).hexdigest()[:24]}{suffix}"
    if not file.is_file() or file.stat().st_size != len(content):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(file, content)
        except OSError as error:
            raise ManifestError(
                f"{where}: its image cannot be written to {folder} ({error.strerror}): give another folder as "
                "the option pictures"
            ) from error
    return file
