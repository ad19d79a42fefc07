"""Reading JSON Lines with errors that name file, line and remedy."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.folders import VIDEO_SUFFIXES, image_suffixes
from vcap_jax.system.files import drop_torn_end, last_line, where_sought
from vcap_jax.system.json_values import (
    JsonDict,
    JsonObject,
    as_object,
    half_character,
    parse_json,
    parse_json_unique,
)

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
_MAYBE_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_TABLES = {
    ".csv": ("CSV", "read_csv({}, dtype=str)"),
    ".tsv": ("TSV", "read_table({}, dtype=str)"),
    ".parquet": ("parquet", "read_parquet({})"),
}
"""What it is called, and what reads it; an id such as 007 must stay a text."""


def require_file(path: Path, what: str) -> None:
    """Raises ManifestError for what is no file of this machine. what: it is called."""
    if path.is_file():
        return
    if is_address(str(path)):
        raise ManifestError(f"the {what} {path} is an address: {address_remedy(str(path))}")
    if path.is_dir():
        raise ManifestError(f"the {what} {path} is a folder: name a file in it")
    raise ManifestError(f"the {what} {path} does not exist{where_sought(path)}: check the path")


def read_objects(path: Path, what: str) -> Iterator[tuple[int, JsonDict]]:
    """Yields (line number from 1, object) for every line that is not blank.

    what: what the file is called in errors, for example "manifest".

    Raises ManifestError: no such file, a folder, not UTF-8, a line that is not a JSON object, or one with half of a
    character.
    """
    require_file(path, what)
    with path.open(encoding="utf-8-sig") as lines:  # some editors begin a file with a byte order mark
        number = 0
        try:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    value = parse_json_unique(line)
                except (ValueError, RecursionError) as error:
                    remedy = other_format(path, what) or "write one JSON object per line"
                    raise ManifestError(f"{path}:{number}: not valid JSON ({error}): {remedy}") from error
                if not isinstance(value, dict):
                    kind = type(value).__name__
                    remedy = other_format(path, what) or "write one object per line"
                    raise ManifestError(f"{path}:{number}: a {kind}, not a JSON object: {remedy}")
                if _MAYBE_HALF.search(line) and (half := half_character(value)):
                    raise ManifestError(
                        f"{path}:{number}: {half} is half of a character, which no text can hold: write the "
                        "whole one, or leave it out; of a file's name, rename the file to UTF-8"
                    )
                yield number, value
        except UnicodeDecodeError as error:
            raise ManifestError(
                other_format(path, what)
                or f"{path}: not UTF-8 text after line {number} ({error}): save it as UTF-8"
            ) from error


def other_format(path: Path, what: str) -> str | None:
    """What a file is by its first bytes or its name, where that is known and not JSON Lines, and what makes a ``what``
    of it."""
    with path.open("rb") as file:
        first = file.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
    suffix, lines = path.suffix.lower(), path.with_suffix(".lines.jsonl")
    table = _TABLES.get(".parquet" if first.startswith(b"PAR1") else suffix)
    if first.startswith(b"{"):
        return None
    if first.startswith(b"["):
        kind, remedy = "a JSON array", f"jq -c '.[]' {quote(str(path))} > {quote(str(lines))}"
    elif first.startswith(b"\x1f\x8b"):
        kind, remedy = "gzip", "unpack it (gunzip)"
    elif table is not None:
        kind, read = table
        read = read.format(repr(str(path)))
        remedy = f"pandas.{read}.to_json({str(lines)!r}, orient='records', lines=True)"
    elif suffix in VIDEO_SUFFIXES or suffix in image_suffixes():
        kind, remedy = "a picture or clip", "name one"
    else:
        return None
    return f"{path} is {kind}, and a {what} is JSON Lines: {remedy}"


def last_row(path: Path) -> JsonDict | None:
    """The last row of a file that grows line by line, None if it has none; what a kill tore off is cut away."""
    drop_torn_end(path)
    line = last_line(path) if path.exists() else b""
    return as_object(parse_json(line), f"the last line of {path}") if line else None


def without_nulls(row: JsonObject) -> JsonDict:
    """The keys of a row that have a value: pandas and datasets write null for every cell that is empty."""
    return {key: value for key, value in row.items() if value is not None}


def string_list(value: object, where: str, key: str) -> tuple[str, ...]:
    """A JSON list of texts that are not blank, as a tuple.

    Raises ManifestError: anything else; ``where`` is "file:line".
    """
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise ManifestError(f'{where}: "{key}" must be a list of texts that are not empty, got {value!r}')
    return tuple(value)


def address_remedy(address: str) -> str:
    """What to do to have the file that an address names."""
    if address.startswith("file:"):
        return "give the path alone, without file://"
    return "download it and give the file's path"


def is_address(name: str) -> bool:
    """Whether a name that should be a local file's is a URL (as a ``Path`` holds it, too, with one slash)."""
    return _ADDRESS.match(name) is not None


def row_id(row: JsonObject, where: str) -> str:
    """The row's "id", a text or a whole number. Raises ManifestError for anything else; ``where`` is "file:line"."""
    identity = row.get("id")
    if isinstance(identity, int) and not isinstance(identity, bool):
        identity = str(identity)
    if not isinstance(identity, str) or not identity:
        raise ManifestError(f'{where}: "id" must be a text that is not empty, got {identity!r}')
    return identity


def other_keys(
    row: JsonObject, where: str, known: Mapping[str, tuple[str, ...]], *, instead: tuple[str, ...] = ()
) -> JsonDict:
    """What a row holds beside the keys that its file knows.

    known: each key with what others call it. instead: keys of which a row has one. Raises ManifestError for a key
    that is another name, or a misspelling by one letter, of one that the row lacks; ``where`` is "file:line".
    """
    others = {key: value for key, value in row.items() if key not in known}
    for key in others:
        plain = key.strip().lower()
        for meant, synonyms in known.items():
            there = meant in row or (meant in instead and any(name in row for name in instead))
            if not there and plain in synonyms:
                raise ManifestError(f'{where}: "{key}" is called "{meant}" here: rename it, or drop it')
            if not there and one_edit_apart(plain, meant):
                raise ManifestError(
                    f'{where}: unknown key "{key}"; the nearest is "{meant}": rename it, or drop it'
                )
    return others


def one_edit_apart(a: str, b: str) -> bool:
    """Whether one letter more, less or other, or two neighbours exchanged, makes ``b`` of ``a`` (or nothing need be
    done)."""
    if abs(len(a) - len(b)) > 1:
        return False
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[same:], b[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
