"""What the docstring of a settings class says about its fields.

    The first paragraph says what the section is for.

    name: what it means. other: an entry may share its line.
    third, fourth: they may share their meaning. Its further lines
        are indented deeper.

An entry begins a line, or follows the end of a sentence (or a semicolon) inside of one. Whatever else stands where an
entry could begin is refused, so that nothing that is documented gets lost.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from vcap_jax.configuration.schema import schema_fields

_NAMES = r"(?P<names>[a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*): "
_ENTRY = re.compile(rf"(?:^|(?<=[.;] )){_NAMES}")
_YAML = {"None": "null", "True": "true", "False": "false"}
_MARKUP = re.compile(r":[a-z]+:`~?([^`]*)`|``([^`]*)``")


@dataclass(frozen=True)
class Entry:
    """names: the fields that share ``meaning``."""

    names: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class ClassDoc:
    """summary: the first paragraph, on one line. entries: by field; what is not documented is absent."""

    summary: str
    entries: dict[str, Entry]


def class_doc(cls: type) -> ClassDoc:
    """What a settings class says of itself.

    Raises ValueError for an entry about a field that the class has not, a second one about the same field, and text
    after the first paragraph that belongs to no entry.
    """
    text = cls.__dict__.get("__doc__") or ""
    if text.startswith(f"{cls.__name__}("):
        text = ""  # the signature, which dataclasses put where there is no docstring
    summary, _, body = inspect.cleandoc(text).partition("\n\n")
    entries: dict[str, Entry] = {}
    for paragraph in _paragraphs(body):
        for names, meaning in _split(paragraph, set(schema_fields(cls)), cls):
            if twice := [name for name in names if name in entries]:
                raise ValueError(f"{cls.__qualname__}: the docstring explains {', '.join(twice)} twice")
            entries |= dict.fromkeys(names, Entry(names, _plain(meaning)))
    return ClassDoc(_plain(" ".join(summary.split())), entries)


def _paragraphs(body: str) -> list[str]:
    """Lines that are not indented, each with the indented ones that go on with it, on one line."""
    found: list[str] = []
    for line in filter(str.strip, body.splitlines()):
        if line.startswith(" ") and found:
            found[-1] += " " + line.strip()
        else:
            found.append(line.strip())
    return found


def _split(paragraph: str, fields: set[str], cls: type) -> list[tuple[tuple[str, ...], str]]:
    begins = []
    for match in _ENTRY.finditer(paragraph):
        names = tuple(match["names"].split(", "))
        if unknown := [name for name in names if name not in fields]:
            if paragraph[: match.start()].endswith("; "):
                continue  # a clause of a sentence, like any other
            raise ValueError(
                f"{cls.__qualname__}: the docstring explains {', '.join(unknown)}, no field of it"
            )
        begins.append((match.start(), match.end(), names))
    if not begins or begins[0][0]:
        raise ValueError(
            f"{cls.__qualname__}: the docstring has {paragraph!r} where an entry (name: meaning) should begin; "
            "indent what goes on with an entry"
        )
    ends = [start for start, _, _ in begins[1:]] + [len(paragraph)]
    return [
        (names, paragraph[end:until].strip().rstrip(";.") + ".")
        for (_, end, names), until in zip(begins, ends, strict=True)
    ]


def _plain(text: str) -> str:
    """As a user writes it: without the marks of reStructuredText, and with YAML's words for Python's."""
    text = _MARKUP.sub(lambda match: match[1] or match[2], text)
    return re.sub(r"\b(?:None|True|False)\b", lambda match: _YAML[match[0]], text)
