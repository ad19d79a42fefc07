"""Settings: frozen dataclasses whose fields say what they mean, what they may hold and what they hold by default.

    @settings
    class LoggingConfig:
        '''What a run leaves behind.'''

        save_every: int = Field(default=20, ge=1, description="Steps between checkpoints.")

Pydantic checks types and bounds whenever an instance is made, ``dataclasses.replace`` included; a rule over several
fields stands in ``__post_init__`` and names them in full. This module sees a tree of such classes as sections and keys.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Literal, TypeVar, dataclass_transform

import pydantic.dataclasses
from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from vcap_jax.configuration.dialect import inline_yaml

T = TypeVar("T")

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
"""No "4" for 4, no 1.0 or true for 1 (an integer is a float, though); no key that is not a field; finite numbers."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def settings(cls: type[T]) -> type[T]:
    """Makes a class of settings: a frozen dataclass with keyword-only fields, checked strictly.

    Making an instance that breaks a bound or a rule raises pydantic.ValidationError, a ValueError.
    """
    made = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)(cls)
    return typing.cast(type[T], made)


@dataclass(frozen=True)
class Key:
    """A key as a user reads about it. default: YAML, "" where the key is required. meaning: "" if there is none."""

    path: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """The keys of one section, without those of the sections inside of it.

    path: dotted, "" for the whole. absent: whether it is null by default.
    """

    path: str
    about: str
    absent: bool
    keys: tuple[Key, ...]


def fields_of(cls: type) -> dict[str, FieldInfo]:
    """The fields of a settings class by name; none of another class."""
    return getattr(cls, "__pydantic_fields__", {})


def section_of(annotation: object) -> type | None:
    """The settings class of an annotation ``Section`` or ``Section | None``; None for anything else."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    if is_union(annotation):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return section_of(members[0])
    return None


def is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def default_of(field: FieldInfo, name: str, owner: object = None) -> object:
    """What a field holds in ``owner``, the default instance of its section; without one (None or PydanticUndefined)
    what its class says. PydanticUndefined where the key is required."""
    if owner is None or owner is PydanticUndefined:
        return field.get_default(call_default_factory=True)
    return getattr(owner, name)


def sections(
    cls: type, owner: object = None, path: str = "", note: str = "", absent: bool = False
) -> Iterator[Section]:
    """The section of ``cls`` and all that are inside of it, each before those that it holds itself.

    owner: the default instance, if there is one. note: what the section that holds it says about this one.
    """
    keys, inside = [], []
    for name, field in fields_of(cls).items():
        value, meaning = default_of(field, name, owner), " ".join((field.description or "").split())
        full = f"{path}.{name}".lstrip(".")
        if (section := section_of(field.annotation)) is not None:
            inside.append((section, value, full, meaning, value is None))
            continue
        shown = "" if value is PydanticUndefined else inline_yaml(value)
        keys.append(Key(full, type_text(field.annotation, field.metadata), shown, meaning))
    yield Section(path, " ".join(filter(None, [_summary(cls), note])), absent, tuple(keys))
    for each in inside:
        yield from sections(*each)


def _summary(cls: type) -> str:
    """The first paragraph of the docstring, on one line."""
    text = cls.__dict__.get("__doc__") or ""
    if text.startswith(f"{cls.__name__}("):
        return ""  # the signature, which dataclasses put where there is no docstring
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split()).replace("``", "`")


@functools.cache
def dotted_paths(schema: type) -> tuple[str, ...]:
    paths = []
    for name, field in fields_of(schema).items():
        paths.append(name)
        if (section := section_of(field.annotation)) is not None:
            paths += [f"{name}.{path}" for path in dotted_paths(section)]
    return tuple(paths)


def nearest_key(path: str, siblings: Sequence[str], everywhere: Sequence[str] = ()) -> str | None:
    """The valid key most similar to an unknown one, a neighbour rather than a namesake far away; None where none is."""
    parent, _, leaf = path.rpartition(".")

    def similarity(candidate: str) -> float:
        other_parent, _, other_leaf = candidate.rpartition(".")
        by_leaf = difflib.SequenceMatcher(None, leaf, other_leaf).ratio()
        by_parent = difflib.SequenceMatcher(None, parent, other_parent).ratio()
        return 0.8 * by_leaf + 0.2 * by_parent

    best = max([*siblings, *everywhere], key=similarity, default=None)
    return best if best is not None and similarity(best) >= 0.65 else None


def type_text(annotation: object, metadata: Iterable[object] = ()) -> str:
    """A type with its bounds as a user reads it: "int >= 1 | null", "float in [0, 1)", "list[str]"."""
    if typing.get_origin(annotation) is Annotated:
        annotation, *more = typing.get_args(annotation)
        return type_text(annotation, [*metadata, *more])
    if annotation is type(None):
        return "null"
    if is_union(annotation):
        return " | ".join(type_text(member, metadata) for member in typing.get_args(annotation))
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple and arguments[1:] == (Ellipsis,):
        return f"list[{type_text(arguments[0])}]"  # what YAML calls it
    if typing.get_origin(annotation) is Literal:
        names = [json.dumps(argument) for argument in arguments]
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    if arguments:
        inside = ", ".join("..." if item is Ellipsis else type_text(item) for item in arguments)
        return f"{getattr(typing.get_origin(annotation), '__name__', annotation)}[{inside}]"
    name: str = getattr(annotation, "__name__", str(annotation))
    return name + _bounds(metadata) if annotation in (int, float) else name


def _bounds(metadata: Iterable[object]) -> str:
    """The bounds among a field's metadata, which hold each in an attribute of its name."""
    found: dict[str, float] = {}
    for item in metadata:
        for part in item.metadata if isinstance(item, FieldInfo) else [item]:
            for name in ("ge", "gt", "le", "lt"):
                if (bound := getattr(part, name, None)) is not None:
                    found[name] = bound
    lower = f"[{found['ge']}" if "ge" in found else f"({found['gt']}" if "gt" in found else ""
    upper = f"{found['le']}]" if "le" in found else f"{found['lt']})" if "lt" in found else ""
    if lower and upper:
        return f" in {lower}, {upper}"
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return "".join(f" {signs[name]} {bound}" for name, bound in found.items())
