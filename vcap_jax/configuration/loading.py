"""From YAML files and dotted overrides to settings."""

from __future__ import annotations

import json
import shlex
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pydantic
import yaml
from pydantic_core import ErrorDetails, PydanticUndefined

from vcap_jax.configuration.dialect import parse_yaml, plain, read_layers
from vcap_jax.configuration.errors import ConfigError, given
from vcap_jax.configuration.schema import (
    default_of,
    dotted_paths,
    fields_of,
    is_union,
    nearest_key,
    section_of,
    type_text,
)
from vcap_jax.configuration.shipped import find_config
from vcap_jax.system.home import at_home
from vcap_jax.system.json_values import JsonDict, JsonObject, JsonValue, as_object, half_character

T = TypeVar("T")
_COMMAND_LINE = "command line"


def load_config(schema: type[T], yaml_paths: Iterable[str | Path] = (), overrides: Iterable[str] = ()) -> T:
    """Builds ``schema`` from its defaults, then YAML files in order, then ``a.b.c=value`` overrides.

    A file ``configs/...`` that is not there is the one of that name that comes with the package.
    Mappings are merged key by key; anything else is replaced. An override's value is YAML, or plain text
    where only text fits the key. Keys that nothing sets keep the default of the innermost default instance
    that holds them.

    Raises:
        ConfigError: naming every unknown key (with the nearest valid one), ill-typed or missing value, value out of
            bounds or against a rule of its section, unreadable file and circular ``extends``; for a path or override
            that is in no list.
    """
    # A text would be taken letter by letter.
    for name, one in (("yaml_paths", yaml_paths), ("overrides", overrides)):
        if isinstance(one, str | Path):
            raise ConfigError(f"{name} is a single {type(one).__name__}: give a list of them, [{str(one)!r}]")
    problems: list[str] = []
    layers = read_layers(find_config(Path(path)) for path in yaml_paths)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            problems.append(f"{override!r}: an override has the form key.of.section=value")
        elif not text.strip():  # most often a variable of the shell that is not set
            unset = "write null to unset it, or '' with its quotes for an empty text"
            problems.append(f"{path.strip()}= ({_COMMAND_LINE}): has no value; {unset}")
        else:
            layers.append((_COMMAND_LINE, _override(schema, path.strip().split("."), text)))
    merged, sources = _defaults(schema), dict[str, str]()
    for label, layer in layers:
        _merge(merged, layer, schema, "", label, sources)
    merged = as_object(_paths_at_home(merged), schema.__name__)
    problems += _halves(merged, sources)
    # Half of a character, which is told of, is no JSON.
    document = json.dumps(merged, ensure_ascii=False).encode(errors="replace")
    try:
        # JSON mode is as strict about scalars, but takes a list for a tuple and text for a path, as YAML needs.
        config = pydantic.TypeAdapter(schema).validate_json(document)
    except pydantic.ValidationError as error:
        problems += _problems(error, schema, merged, sources)
    if problems:
        raise ConfigError(*problems)
    return config


def _paths_at_home(value: JsonValue) -> JsonValue:
    """The value with the home folder where a text begins with ``~/``, as a shell has it."""
    if isinstance(value, str):
        return at_home(value)
    if isinstance(value, Mapping):
        return {name: _paths_at_home(item) for name, item in value.items()}
    return [_paths_at_home(item) for item in value] if isinstance(value, list) else value


def _halves(merged: JsonObject, sources: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    """A sentence for each key whose text holds half of a character, as Python reads a path that is not UTF-8."""
    for name, value in merged.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and not half_character(path):
            yield from _halves(value, sources, f"{path}.")
        elif half := half_character([path, value]):
            origin = f" ({sources[path]})" if path in sources else ""
            named = path.encode(errors="backslashreplace").decode()
            yield (
                f"{named}{origin}: {half} is half of a character, or of a name that is not UTF-8: write the whole "
                "one, or rename the file"
            )


_NULL = frozenset(("~", "null", "Null", "NULL"))
"""As YAML writes it."""


def _override(schema: type, parts: list[str], text: str) -> JsonDict:
    """The nested mapping that an override stands for."""
    annotation: object = schema
    for part in parts:
        if typing.get_origin(annotation) is dict:
            annotation = typing.get_args(annotation)[1]
            continue
        section = section_of(annotation)
        fields = {} if section is None else fields_of(section)
        annotation = fields[part].annotation if part in fields else None
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        value = text
    members = set(typing.get_args(annotation) if is_union(annotation) else [annotation])
    if members <= {str, Path, type(None)}:
        quoted = isinstance(value, str) and text.lstrip().startswith(("'", '"'))
        unset = type(None) in members and text.strip() in _NULL
        if not (quoted or unset):
            value = text  # a run named 2026, a prompt with a colon, a number sign or two lines
    for part in reversed(parts):
        value = {part: value}
    return as_object(value, ".".join(parts))


def _defaults(schema: type, owner: object = None) -> JsonDict:
    """What the keys hold that nothing sets, as plain values; the required ones are absent."""
    values = {name: default_of(field, name, owner) for name, field in fields_of(schema).items()}
    return {name: plain(value) for name, value in values.items() if value is not PydanticUndefined}


def _merge(
    base: JsonDict,
    layer: JsonObject,
    schema: type | None,
    path: str,
    label: str,
    sources: dict[str, str],
) -> None:
    """schema: the section that the mappings are of; None in what is none."""
    fields = {} if schema is None else fields_of(schema)
    for name, value in layer.items():
        sources[path + name] = label
        section = section_of(fields[name].annotation) if name in fields else None
        if not isinstance(value, Mapping):
            base[name] = value
            continue
        inner = base.get(name)
        if not isinstance(inner, dict):
            inner = base[name] = {} if section is None else _defaults(section, default_of(fields[name], ""))
        _merge(inner, value, section, f"{path}{name}.", label, sources)


def _problems(
    error: pydantic.ValidationError, schema: type, merged: JsonObject, sources: Mapping[str, str]
) -> list[str]:
    """A sentence for each key that pydantic refuses, and for each rule of a section that is broken."""
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        path, rule, text = _problem(detail, schema, merged)
        if rule:
            origin = sources.get(_first_word(text))
            found[path] = text + (f" ({origin})" if origin else "")
            continue
        named = path
        while named and named not in sources:
            named = named.rpartition(".")[0]
        origin = sources.get(named)
        # Of a union every member complains, of a list every item: the first is told.
        found.setdefault(path, f"{path} ({origin}): {text}" if origin else f"{path}: {text}")
    return list(found.values())


def _problem(detail: ErrorDetails, schema: type, merged: JsonObject) -> tuple[str, bool, str]:
    """The dotted path of the key that an error is about, whether a section's rule is broken, and what is wrong."""
    annotation: object = schema
    metadata: Sequence[object] = []
    value: object = merged
    path = ""
    rest = list(detail["loc"])
    while rest and ((section := section_of(annotation)) is not None or _item_section(annotation) is not None):
        part, prefix = rest.pop(0), f"{path}." if path else ""
        path = f"{prefix}{part}"
        fields = {} if section is None else fields_of(section)
        if section is not None and part not in fields:
            return _unknown(schema, path, str(part), detail["input"], [prefix + name for name in fields])
        if isinstance(value, Mapping):
            value = value.get(part)
        else:
            value = value[part] if isinstance(value, list) and isinstance(part, int) else None
        if section is None:
            annotation, metadata = _item_section(annotation), []
        else:
            annotation, metadata = fields[str(part)].annotation, fields[str(part)].metadata
    section = section_of(annotation)
    if detail["type"] == "missing":
        return path, False, f"is required ({type_text(annotation, metadata)}) and is not set"
    if detail["type"] == "value_error":
        text = str(detail["ctx"]["error"])
        if section is None:
            return path, False, f"{text}, given {given(value)}"
        # A rule that begins with a key of its section is told with the full name: the section may be one of several.
        within = "." if _first_word(text) in fields_of(section) else ": "
        return path, True, text if text.startswith(path) else f"{path}{within}{text}"
    if section is not None:
        return (
            path,
            False,
            f"expected a section with the keys {', '.join(fields_of(section))}, given {given(value)}",
        )
    text = f"expected {type_text(annotation, metadata)}, given {given(value)}"
    if rest and isinstance(value, list | Mapping):
        text += f"; item {'.'.join(map(str, rest))}: {detail['msg']}"
    elif (
        typing.get_origin(annotation) in (list, tuple)
        and not isinstance(value, Mapping)
        and value is not None
    ):
        text += f"; a list takes brackets: {shlex.quote(f'{path}={_in_brackets(value)}')}"
    return path, False, text


def _in_brackets(value: object) -> str:
    """What was given for a list as one. An address with brackets of its own (IPv6) needs quotes."""
    if not isinstance(value, str) or "[" not in value:
        return f"[{value}]"
    inside = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return json.dumps([item.strip() for item in inside.split(",")], ensure_ascii=False)


def _first_word(text: str) -> str:
    return text.split()[0].rstrip(",:")


def _item_section(annotation: object) -> type | None:
    """The settings class of the items of a list, tuple or mapping; None if they are of none."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    return section_of(arguments[-1 if origin is dict else 0]) if origin in (list, tuple, dict) else None


def _unknown(schema: type, path: str, key: str, value: object, siblings: list[str]) -> tuple[str, bool, str]:
    """key: the last of the path, as it is written. value: what is given there."""
    path, nearest = _nearest(path, value, siblings, dotted_paths(schema))
    advice = (
        f"the nearest valid key is {nearest}" if nearest else f"valid keys here are {', '.join(siblings)}"
    )
    if "." in key:
        advice += f"; a file nests keys: {key.replace('.', ': {')}: ...{'}' * key.count('.')}"
    return path, False, f"unknown key; {advice}"


def _nearest(
    path: str, value: object, siblings: Sequence[str], everywhere: Sequence[str]
) -> tuple[str, str | None]:
    """Which key of a path with an unknown one to tell of, and the valid one that is meant. A single key inside of a
    section with a wrong name is told with it; what is inside of anything else is no key of this project."""
    inside = [path]
    while isinstance(value, Mapping) and len(value) == 1:
        (name,) = value
        inside.append(f"{inside[-1]}.{name}")
        value = value[name]
    if (found := nearest_key(path, siblings)) is None:
        # The section may be another one, or made up, and the key one that stands elsewhere.
        named = ((deep, nearest_key(deep, siblings, everywhere)) for deep in reversed(inside))
        return next(((deep, near) for deep, near in named if near is not None), (path, None))
    for deeper in inside[1:]:
        name = deeper.rpartition(".")[2]
        children = [key for key in everywhere if key.startswith(f"{found}.")]
        if (near := nearest_key(f"{found}.{name}", children)) is None:
            break
        path, found = deeper, near
    return path, found
