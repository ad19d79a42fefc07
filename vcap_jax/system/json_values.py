"""JSON in types, and narrowing what was read.

:data:`JsonObject` is an object that was read, or is handed on and not changed. :data:`JsonDict` is one that is being
built. Both are for objects whose keys are not ours to name: a request's body, another program's file. Where the keys
are known, a dataclass or a TypedDict says more. Whatever only goes to ``json.dumps`` is a ``Mapping[str, object]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from typing_extensions import TypeAliasType

from vcap_jax.system.errors import VCapError

# A type of its own, so that pydantic can follow it into itself.
JsonValue = TypeAliasType(
    "JsonValue", "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)
JsonObject: TypeAlias = Mapping[str, JsonValue]
JsonDict: TypeAlias = dict[str, JsonValue]

_HALF = re.compile("[\ud800-\udfff]")


class JsonError(VCapError, ValueError):
    """JSON that is not what it should be; the message begins with where it stands."""


def parse_json(text: str | bytes) -> JsonValue:
    """The value that a JSON text is. Raises json.JSONDecodeError, a ValueError."""
    value: JsonValue = json.loads(text)
    return value


def unique_keys(pairs: list[tuple[str, JsonValue]]) -> JsonDict:
    """The object of these pairs, for ``json.loads`` as its ``object_pairs_hook``. Raises ValueError for a key that is
    given twice, of which the last would count."""
    found: JsonDict = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} is given twice")
        found[key] = value
    return found


def parse_json_unique(text: str | bytes) -> JsonValue:
    """``parse_json``, with ``unique_keys``: of what a person may have written."""
    value: JsonValue = json.loads(text, object_pairs_hook=unique_keys)
    return value


def read_json_object(path: Path, error: type[VCapError] = JsonError, remedy: str = "") -> JsonDict:
    """The object that a file holds. Raises OSError, and ``error``, with the remedy, for what is no JSON object."""
    end = f": {remedy}" if remedy else ""
    try:
        value = parse_json(path.read_bytes())
    except (ValueError, RecursionError) as wrong:
        raise error(f"{path} is not valid JSON ({wrong}){end}") from wrong
    if not isinstance(value, dict):
        raise error(f"{_mismatch(value, str(path), 'an object')}{end}")
    return value


def half_character(value: object) -> str | None:
    """The first half of a character that a JSON value holds, escaped, as Python reads a name that is not UTF-8; None if
    it holds none. No file of UTF-8 can."""
    found = _HALF.search(json.dumps(value, ensure_ascii=False))
    return None if found is None else ascii(found[0])


def rows_of(text: str) -> list[str]:
    """The lines of JSON Lines that are not blank. ``str.splitlines`` cuts at characters that JSON leaves as they are
    inside a text, such as U+2028 and U+0085."""
    return [line for line in text.split("\n") if line.strip()]


def as_object(value: object, where: str) -> JsonDict:
    """A JSON object, the same one. where: what it is and where it stands, for the message. Raises JsonError."""
    if not isinstance(value, dict):
        raise _mismatch(value, where, "an object")
    return value


def as_list(value: object, where: str) -> list[JsonValue]:
    """A JSON list, the same one. Raises JsonError."""
    if not isinstance(value, list):
        raise _mismatch(value, where, "a list")
    return value


def as_text(value: object, where: str) -> str:
    """A JSON string. Raises JsonError."""
    if not isinstance(value, str):
        raise _mismatch(value, where, "a text")
    return value


def as_whole(value: object, where: str) -> int:
    """A JSON integer; ``true`` is none. Raises JsonError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mismatch(value, where, "a whole number")
    return value


def as_number(value: object, where: str) -> float:
    """A JSON number as it is, whole or not; ``true`` is none. Raises JsonError."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _mismatch(value, where, "a number")
    return value


def _mismatch(value: object, where: str, wanted: str) -> JsonError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
    return JsonError(f"{where}: {shown}, where {wanted} is wanted")
