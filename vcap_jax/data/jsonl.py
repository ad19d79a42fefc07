"""Reading JSON Lines with errors that name file, line and remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vcap_jax.data.errors import ManifestError


def read_objects(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) for every line that is not blank.

    what: what the file is called in errors, for example "manifest".

    Raises:
        ManifestError: no such file, not UTF-8, or a line that is not a JSON object.
    """
    if not path.is_file():
        raise ManifestError(f"the {what} {path} does not exist: check the path")
    with path.open(encoding="utf-8") as lines:
        number = 0
        try:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise ManifestError(
                        f"{path}:{number}: not valid JSON ({error}): write one JSON object per line"
                    ) from error
                if not isinstance(value, dict):
                    kind = type(value).__name__
                    raise ManifestError(
                        f"{path}:{number}: a {kind}, not a JSON object: write one object per line"
                    )
                yield number, value
        except UnicodeDecodeError as error:
            raise ManifestError(
                f"{path}: not UTF-8 text after line {number} ({error}): save it as UTF-8"
            ) from error


def last_row(path: Path) -> dict[str, Any] | None:
    """The last row of a file that grows line by line, None if it has none; what a kill tore off is cut away."""
    if not path.exists():
        return None
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    row: dict[str, Any] | None = json.loads(whole.splitlines()[-1]) if whole else None
    return row


def string_list(value: Any, where: str, key: str) -> tuple[str, ...]:
    """A JSON list of texts that are not blank, as a tuple.

    Raises:
        ManifestError: anything else; ``where`` is "file:line".
    """
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise ManifestError(f'{where}: "{key}" must be a list of texts that are not empty, got {value!r}')
    return tuple(value)
