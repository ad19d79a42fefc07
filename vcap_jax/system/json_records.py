"""Records in JSON: dataclasses and TypedDicts whose fields' types say what is read (by pydantic).

For what this project wrote itself. What others wrote, and what a message must explain key by key, is read by
``json_values``.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TypeVar

import numpy as np
import pydantic
from numpy.typing import DTypeLike
from pydantic import GetPydanticSchema
from pydantic_core import core_schema

from vcap_jax.system.json_values import JsonDict, JsonError

T = TypeVar("T")


def as_record(kind: type[T], value: object, where: str) -> T:
    """The record that a JSON value holds; keys that it does not know are passed over.

    where: what it is and where it stands, for the message. Raises JsonError for a key that is missing or of another
    type.
    """
    return parse_record(kind, json.dumps(value), where)


def read_record(kind: type[T], path: Path, *, remedy: str = "") -> T:
    """The record that a file holds. remedy: what to do about one that is damaged. Raises OSError, and JsonError as
    ``as_record`` does."""
    try:
        return parse_record(kind, path.read_bytes(), str(path))
    except JsonError as error:
        if not remedy:
            raise
        raise JsonError(f"{error}; {remedy}") from error


def parse_record(kind: type[T], text: str | bytes, where: str) -> T:
    """The record that a JSON text is. Raises JsonError as ``as_record`` does."""
    try:
        return adapter_of(kind).validate_json(text, strict=True)  # type: ignore[arg-type]  # classes are hashable
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        keys = "".join(f": {key}" for key in problem["loc"])
        given = "" if problem["type"] == "missing" else f"{problem['input']!r:.80}, "
        raise JsonError(f"{where}{keys}: {given}{problem['msg'].lower()}") from error


def record_values(record: object) -> JsonDict:
    """A record as JSON holds it, without the fields that have their defaults; what ``as_record`` reads back."""
    adapter = adapter_of(type(record))  # type: ignore[arg-type]  # classes are hashable
    values: JsonDict = adapter.dump_python(record, mode="json", by_alias=True, exclude_defaults=True)
    return values


def array_of(dtype: DTypeLike, *, columns: int | None = None) -> GetPydanticSchema:
    """For ``Annotated[np.ndarray, array_of(...)]``: an array that JSON holds as lists. columns: of a matrix of any
    number of rows, for lists are empty where it has none."""
    shape = (-1,) if columns is None else (-1, columns)
    schema = core_schema.no_info_plain_validator_function(
        lambda values: np.array(values, dtype).reshape(shape),
        serialization=core_schema.plain_serializer_function_ser_schema(
            lambda values: values.astype(dtype).tolist()
        ),
    )
    return GetPydanticSchema(lambda source, handler: schema)


@functools.cache
def adapter_of(kind: type[T]) -> pydantic.TypeAdapter[T]:
    """What reads and writes records of a kind; made once."""
    return pydantic.TypeAdapter(kind)
