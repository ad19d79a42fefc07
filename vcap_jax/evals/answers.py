"""Answers of judges, typed by a JSON schema: what is asked for, and how what came is read.

An answer that does not fit is a Failure, which the client asks about again and which is never a score.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

import pydantic

from vcap_jax.reward.failures import Failure
from vcap_jax.reward.json_objects import head, one_object
from vcap_jax.reward.prompts import object_schema
from vcap_jax.system.json_values import JsonDict, JsonObject, JsonValue

T = TypeVar("T")

_ENUMERATED = 500
"""Words in a schema at most."""
_AROUND = " \t\r\n*`'\"“”‘’"
"""What may stand around a word and changes nothing."""
_UNKNOWN = r"un(?:answer|clear|known)"
_BEGINS = re.compile(
    rf"(yes(?!.*\b(?:no\b|{_UNKNOWN}))"
    rf"|no(?!.*\b(?:yes\b|{_UNKNOWN}|caption|mention|state|sa[iy]|specif|descri|determin)))[*`'\"]*\s*[,.;:!]",
    re.IGNORECASE | re.DOTALL,
)
"""A yes or no that an answer begins with and does not take back: by the other, or since nothing is said of it."""

Sentences = Annotated[str, pydantic.Field(json_schema_extra={"maxLength": 1000})]
"""A text of a few sentences. A server that enforces schemas ends a longer one, so that a judge that repeats itself does
so until here and not until its tokens are used up; of other servers a longer one is taken."""


@dataclass(frozen=True, kw_only=True)
class Shape(Generic[T]):
    """The JSON object that answers a question.

    schema: of the object, with its keys under "properties". read: the object, which has these keys, to a value or a
    Failure.
    """

    schema: JsonObject
    read: Callable[[JsonObject], T | Failure]

    @functools.cached_property
    def text(self) -> str:
        """The schema, the same for the same schema."""
        return json.dumps(self.schema, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Answered(Generic[T]):
    """An answer as it came, which the store keeps, and what was read of it."""

    row: JsonObject
    value: T


def typed(kind: type[T], check: Callable[[T], str | None] | None = None) -> Shape[T]:
    """The shape of a dataclass or pydantic model.

    check: what else is wrong with an answer, None if nothing is.
    """
    adapter, schema = _described(kind)  # type: ignore[arg-type]  # classes are hashable

    def read(row: JsonObject) -> T | Failure:
        try:
            value = adapter.validate_python(row)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            return Failure(reason="bad_answer", detail=f"{where}: {first['msg']} in {head(repr(row))}")
        if truth := next(_truths(dict(row), adapter.dump_python(value, mode="json")), None):
            return Failure(reason="bad_answer", detail=f"{truth} is no number in {head(repr(row))}")
        wrong = None if check is None else check(value)
        return (
            value if wrong is None else Failure(reason="bad_answer", detail=f"{wrong} in {head(repr(row))}")
        )

    return Shape(schema=schema, read=read)


def _truths(told: JsonValue, read: JsonValue, *where: str) -> Iterator[str]:
    """Where a true or false was read as something else: Python takes them for the numbers 1 and 0."""
    if isinstance(told, bool) and not isinstance(read, bool):
        yield ".".join(where)
    elif isinstance(told, Mapping) and isinstance(read, Mapping):
        for name in told:
            yield from _truths(told[name], read.get(name, told[name]), *where, name)
    elif isinstance(told, list) and isinstance(read, list):
        for number, both in enumerate(zip(told, read, strict=True)):
            yield from _truths(*both, *where, str(number))


@functools.cache
def _described(kind: type[T]) -> tuple[pydantic.TypeAdapter[T], JsonDict]:
    """Checks and describes answers of a kind; both take longer to make than a question to ask."""
    adapter = pydantic.TypeAdapter(kind)
    schema = adapter.json_schema()
    # Hosted servers take a strict schema only if every object in it is closed.
    for described in (schema, *schema.get("$defs", {}).values()):
        described.setdefault("additionalProperties", False)
    return adapter, schema


def chosen(options: Mapping[str, Sequence[str]]) -> Shape[Mapping[str, str]]:
    """One of several words under each of some names: letters, yes or no, true or false.

    options: by name. White space around a word, its case, brackets, quotes and asterisks, a full stop, "option" before
    a letter and what follows "A)" do not matter.
    """

    def read(row: JsonObject) -> Mapping[str, str] | Failure:
        found: dict[str, str] = {}
        for name, words in options.items():
            given = _word(row[name])
            meant = [word for word in words if word.casefold() == given]
            if len(meant) != 1:
                detail = f"{name}: {head(repr(row[name]))} is none of {', '.join(words)}"
                return Failure(reason="bad_answer", detail=detail)
            found[name] = meant[0]
        return found

    # Hosted servers refuse a schema with many words; without them the reader still does.
    few = sum(map(len, options.values())) <= _ENUMERATED
    properties: JsonDict = {
        name: {"type": "string", "enum": list(words)} if few else {"type": "string"}
        for name, words in options.items()
    }
    return Shape(schema=object_schema(properties), read=read)


def _word(value: JsonValue) -> str:
    """What a judge means by "**B**", "`B`", "Option B", "(B) a dog" or "B. A dog"; by 1 or 1.0, where it was asked for
    "1"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool | int):
        return str(value).casefold()
    if not isinstance(value, str):
        return ""
    text = value.strip(_AROUND).lstrip(f"({_AROUND}").casefold()
    text = re.sub(rf"^option\s+[({_AROUND}]*(?=\w\b)", "", text)
    lettered = re.match(r"(\w)[.:](?:\s|$)", text)
    return lettered[1] if lettered else text.split(")")[0].strip(f".{_AROUND}")


def word(cased: Callable[[str], str]) -> pydantic.BeforeValidator:
    """Of a field that holds one of a few words: "yes." and "**Yes**, it is" are read as "Yes" by ``str.capitalize``, as
    "yes" by ``str.lower``. What goes on to say something else ("No, the caption does not say") stays as it is."""

    def read(told: object) -> object:
        if not isinstance(told, str):
            return told
        text = told.strip(f".{_AROUND}")
        begins = _BEGINS.match(text)
        return cased(begins[1] if begins else text)

    return pydantic.BeforeValidator(read)


Digit = Annotated[
    Literal[0, 1],
    pydantic.BeforeValidator(
        lambda told: (
            int(text) if isinstance(told, str) and (text := told.strip(_AROUND)) in ("0", "1") else told
        )
    ),
]
"""0 or 1; "1" is one, too."""


def read_answer(text: str | None, finish_reason: str | None, shape: Shape[T]) -> Answered[T] | Failure:
    """What a judge wrote, as the shape wants it, or a Failure: not exactly one JSON object with its keys, one too few
    or repeated, a value that does not fit. Keys that were not asked for are dropped.
    """
    properties = shape.schema["properties"]
    assert isinstance(properties, Mapping)
    row = one_object(text, finish_reason, properties)
    if isinstance(row, Failure):
        return row
    if missing := [name for name in properties if name not in row]:
        return Failure(reason="missing_key", detail=f"{', '.join(missing)} is missing in: {head(text or '')}")
    row = {name: row[name] for name in properties}
    value = shape.read(row)
    return value if isinstance(value, Failure) else Answered(row=row, value=value)
