"""A configuration schema seen as a tree: sections, keys, defaults, dotted paths, and what fits a key."""

from __future__ import annotations

import difflib
import functools
import json
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Literal

import pydantic


@dataclass(frozen=True)
class SchemaField:
    name: str
    annotation: Any
    default: Any  # MISSING where the key is required


@functools.cache
def schema_fields(cls: type) -> dict[str, SchemaField]:
    hints = typing.get_type_hints(cls)
    found = {}
    for field in fields(cls):
        if not field.init:
            continue
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        found[field.name] = SchemaField(field.name, hints[field.name], default)
    return found


def is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def section_of(annotation: Any) -> type | None:
    """The dataclass of an annotation ``Section`` or ``Section | None``; None for anything else."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    if is_union(annotation):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return section_of(members[0])
    return None


def inherited_default(field: SchemaField, owner: Any) -> Any:
    """A field's default: what the default instance of its section holds, if there is one."""
    return field.default if owner is MISSING else getattr(owner, field.name)


@functools.cache
def dotted_paths(schema: type) -> tuple[str, ...]:
    paths = []
    for field in schema_fields(schema).values():
        paths.append(field.name)
        if (section := section_of(field.annotation)) is not None:
            paths += [f"{field.name}.{path}" for path in dotted_paths(section)]
    return tuple(paths)


def nearest_key(path: str, siblings: Sequence[str], everywhere: Sequence[str]) -> str:
    """Advice for an unknown key: the most similar valid one, a neighbour rather than a namesake far away."""
    parent, _, leaf = path.rpartition(".")

    def similarity(candidate: str) -> float:
        other_parent, _, other_leaf = candidate.rpartition(".")
        by_leaf = difflib.SequenceMatcher(None, leaf, other_leaf).ratio()
        by_parent = difflib.SequenceMatcher(None, parent, other_parent).ratio()
        return 0.8 * by_leaf + 0.2 * by_parent

    best = max([*siblings, *everywhere], key=similarity, default=None)
    if best is not None and similarity(best) >= 0.65:
        return f"the nearest valid key is {best}"
    return f"valid keys here are {', '.join(siblings)}"


@functools.cache
def adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(annotation)


def mismatch(annotation: Any, value: Any) -> str | None:
    """None if the value has the type; else where inside the value it has not (empty: the value itself)."""
    if any(
        isinstance(item, int) and abs(item) >= 2**63
        for item in (value if isinstance(value, list) else [value])
    ):
        return "; whole numbers have at most 64 bits"
    # JSON mode is as strict about scalars, but takes a list for a tuple and text for a path, as YAML needs.
    try:
        adapter(annotation).validate_json(json.dumps(value), strict=True)
    except TypeError:
        return " (not a plain value)"
    except pydantic.ValidationError as error:
        if isinstance(value, list | dict):
            return "".join(
                f"; item {'.'.join(map(str, detail['loc']))}: {detail['msg']}"
                for detail in error.errors()[:3]
            )
        return ""
    return None


def type_name(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if is_union(annotation):
        return " | ".join(type_name(member) for member in typing.get_args(annotation))
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple and arguments[1:] == (Ellipsis,):
        return f"list[{type_name(arguments[0])}]"  # what YAML calls it
    if typing.get_origin(annotation) is Literal:
        names = [json.dumps(argument) for argument in arguments]
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    if arguments:
        inside = ", ".join("..." if item is Ellipsis else type_name(item) for item in arguments)
        return f"{getattr(typing.get_origin(annotation), '__name__', annotation)}[{inside}]"
    return getattr(annotation, "__name__", str(annotation))
