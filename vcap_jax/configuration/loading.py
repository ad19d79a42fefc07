"""From YAML files and dotted overrides to nested frozen dataclasses."""

from __future__ import annotations

import json
import re
import shlex
import typing
from collections.abc import Container, Iterable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

import yaml

from vcap_jax.configuration.dialect import merge, parse_yaml, read_layers
from vcap_jax.configuration.errors import ConfigError, given
from vcap_jax.configuration.schema import (
    adapter,
    dotted_paths,
    inherited_default,
    is_union,
    mismatch,
    nearest_key,
    schema_fields,
    section_of,
    type_name,
)

T = TypeVar("T")


def load_config(schema: type[T], yaml_paths: Iterable[str | Path] = (), overrides: Iterable[str] = ()) -> T:
    """Builds ``schema`` from its defaults, then YAML files in order, then ``a.b.c=value`` overrides.

    Mappings are merged key by key; anything else is replaced. An override's value is YAML, or plain text
    where only text fits the key. Keys that nothing sets keep the default of the innermost default instance
    that holds them.

    Raises:
        ConfigError: naming every unknown key (with the nearest valid one), ill-typed or missing value, value
            refused by a section's own checks, unreadable file and circular ``extends``.
    """
    problems: list[str] = []
    sources: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for path in yaml_paths:
        for label, layer in read_layers(Path(path), ()):
            merge(merged, layer, "", label, sources)
    for override in overrides:
        layer = _parse_override(schema, override, problems)
        merge(merged, layer, "", "command line", sources)
    config = _Builder(schema, sources, problems).section(schema, merged, MISSING, "")
    if problems:
        raise ConfigError(problems)
    return typing.cast(T, config)


def _parse_override(schema: type, override: str, problems: list[str]) -> dict[str, Any]:
    path, equals, text = override.partition("=")
    path = path.strip()
    if not equals or not path:
        problems.append(f"{override!r}: an override has the form key.of.section=value")
        return {}
    annotation: Any = schema
    parts = path.split(".")
    for depth, part in enumerate(parts):
        section = section_of(annotation)
        if section is None:
            if typing.get_origin(annotation) is dict:
                annotation = typing.get_args(annotation)[1]
                continue
            owner = ".".join(parts[:depth])
            problems.append(
                f"{path} (command line): {owner} is {type_name(annotation)} and has no keys of its own"
            )
            return {}
        if part not in schema_fields(section):
            siblings = [".".join([*parts[:depth], name]) for name in schema_fields(section)]
            problems.append(
                f"{path} (command line): unknown key; {nearest_key(path, siblings, dotted_paths(schema))}"
            )
            return {}
        annotation = schema_fields(section)[part].annotation
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        value = text
    if (
        section_of(annotation) is None
        and mismatch(annotation, value) is not None
        and mismatch(annotation, text) is None
    ):
        value = text  # a run named 2026 or a prompt with a colon in it
    for part in reversed(parts):
        value = {part: value}
    return typing.cast(dict[str, Any], value)


_NAMED = re.compile(r"((?:[a-z_]+\.)*)(\w*)(.*)", re.DOTALL)
_BAD = object()  # a value that could not be built; the reason is in the list of problems


class _Builder:
    """Turns merged mappings into dataclasses and notes every problem on the way."""

    def __init__(self, root: type, sources: Mapping[str, str], problems: list[str]) -> None:
        self.root, self.sources, self.problems = root, sources, problems

    def problem(self, path: str, text: str) -> None:
        named = path
        while named and named not in self.sources:
            named = named.rpartition(".")[0]
        origin = f" ({self.sources[named]})" if named else ""
        self.problems.append(f"{path}{origin}: {text}" if path else text)

    def section(self, cls: type, mapping: Mapping[str, Any], default: Any, prefix: str) -> Any:
        known = schema_fields(cls)
        before = len(self.problems)
        for key in mapping:
            if key not in known:
                siblings = [prefix + name for name in known]
                advice = nearest_key(prefix + key, siblings, dotted_paths(self.root))
                self.problem(prefix + key, f"unknown key; {advice}")
        values: dict[str, Any] = {}
        for field in known.values():
            path = prefix + field.name
            inherited = inherited_default(field, default)
            if field.name in mapping:
                values[field.name] = self.value(field.annotation, mapping[field.name], inherited, path)
            elif inherited is MISSING:
                self.problem(path, f"is required ({type_name(field.annotation)}) and is not set")
            else:
                values[field.name] = inherited
        if len(self.problems) > before:
            return _BAD
        try:
            return cls(**values)
        except ValueError as error:
            self.refused(known, prefix, str(error))
            return _BAD

    def refused(self, known: Container[str], prefix: str, text: str) -> None:
        """Notes what a section's own check says. A message that begins with a key of the section, as in "judge.model
        is ...", is told with the key's full name: the section may be one of several of its class."""
        owner, key, rest = _NAMED.match(text).groups()  # type: ignore[union-attr]  # it matches any text
        if key in known and f".{prefix}".endswith(f".{owner}"):
            origin = self.sources.get(prefix + key)
            self.problems.append(f"{prefix}{key}{rest}" + (f" ({origin})" if origin else ""))
        else:
            self.problem(prefix.rstrip("."), text)

    def value(self, annotation: Any, value: Any, default: Any, path: str) -> Any:
        section = section_of(annotation)
        if section is not None:
            if value is None and is_union(annotation):
                return None
            if isinstance(value, Mapping):
                return self.section(section, value, MISSING if default is None else default, f"{path}.")
            keys = ", ".join(schema_fields(section))
            self.problem(path, f"expected a section with the keys {keys}, given {given(value)}")
            return _BAD
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        # Dataclasses inside collections are built here too, so that their unknown keys are refused as well.
        if arguments and section_of(arguments[-1 if origin is dict else 0]) is not None:
            if origin in (list, tuple) and isinstance(value, list):
                items = [self.value(arguments[0], v, MISSING, f"{path}.{i}") for i, v in enumerate(value)]
                return items if origin is list else tuple(items)
            if origin is dict and isinstance(value, Mapping):
                return {k: self.value(arguments[1], v, MISSING, f"{path}.{k}") for k, v in value.items()}
        reason = mismatch(annotation, value)
        if reason == "" and origin in (list, tuple) and mismatch(annotation, [value]) is None:
            reason = f"; a list takes brackets: {shlex.quote(f'{path}=[{value}]')}"
        if reason is not None:
            self.problem(path, f"expected {type_name(annotation)}, given {given(value)}{reason}")
            return _BAD
        return adapter(annotation).validate_json(json.dumps(value), strict=True)
