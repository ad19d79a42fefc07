"""The YAML of configuration files, in and out.

YAML is read in the 1.2 core schema, because PyYAML's older one reads ``5e-7`` as text, ``off`` as a boolean
and ``1:30`` as ninety.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path

import yaml

from vcap_jax.configuration.errors import ConfigError, given
from vcap_jax.system.files import where_sought
from vcap_jax.system.json_values import JsonDict, JsonValue, as_object

#: A key of a YAML file, not of the schema: the file or files, relative to it, that it builds upon.
EXTENDS = "extends"


class Loader(yaml.SafeLoader):
    """The YAML 1.2 core schema; a repeated key is an error, and so is an alias of what it stands in."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open: set[str] = set()
        """Anchors of the nodes that are being read."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent):
            if anchor in self._open:
                where = event.start_mark
                place = "" if where is None else f", line {where.line + 1}"
                raise yaml.composer.ComposerError(
                    problem=f"*{anchor} stands in what it is an alias of{place}"
                )
            return super().compose_node(parent, index)
        opened = {anchor} - {None}
        self._open |= opened
        node = super().compose_node(parent, index)
        self._open -= opened
        return node

    def compose_mapping_node(self, anchor: dict[object, yaml.Node]) -> yaml.MappingNode:
        # As it is written: constructing puts in what is merged, which may be given again.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.composer.ComposerError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return node


class Dumper(yaml.SafeDumper):
    """Quotes whatever ``Loader`` would not read as text."""


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    value = int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
    if abs(value) >= 2**63:
        raise yaml.constructor.ConstructorError(
            None, None, "whole numbers have at most 64 bits", node.start_mark
        )
    return value


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Line breaks of Unicode, which reading would fold into blanks, are kept by the escapes of double quotes alone."""
    style = '"' if re.search("[\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_CORE_SCHEMA = (
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
)
for _class in (Loader, Dumper):
    _class.yaml_implicit_resolvers = {}
    for _tag, _pattern, _first in _CORE_SCHEMA:
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first)
        )
# Explicit tags of other types (dates, bytes, sets) are no configuration either: without a constructor they are refused.
Loader.yaml_constructors = {
    f"tag:yaml.org,2002:{tag}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{tag}"]
    for tag in ("null", "bool", "float", "str", "seq", "map")
}
Loader.yaml_constructors[None] = yaml.SafeLoader.yaml_constructors[None]
Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
Dumper.add_representer(str, _represent_text)


def parse_yaml(text: str) -> JsonValue:
    """Reads one YAML document in the dialect of configuration files. Raises yaml.YAMLError."""
    value: JsonValue = yaml.load(text, Loader=Loader)
    return value


def dump_config(config: object) -> str:
    """YAML text of a configuration; ``load_config`` of it gives an equal one."""
    return yaml.dump(
        plain(config), Dumper=Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=100
    )


def inline_yaml(value: object) -> str:
    """A value on one line, or on several where its text has them, as an override takes it."""
    text = yaml.dump(plain(value), Dumper=Dumper, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def plain(value: object) -> JsonValue:
    """A configuration value as YAML and JSON know it: mappings, lists, text, numbers, booleans, None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Path):
        return str(value)
    return typing.cast(JsonValue, value)


def plain_settings(config: object) -> JsonDict:
    """A configuration as YAML and JSON know it: its sections and keys."""
    return as_object(plain(config), type(config).__name__)


def read_layers(paths: Iterable[Path]) -> list[tuple[str, JsonDict]]:
    """The mappings of files in order, and before each what it extends, each with its file's name.

    What several extend stands once, at its first place: above the first of them it would take back what that one says.
    """
    laid: set[Path] = set()
    return [layer for path in paths for layer in _layers(path, (), laid)]


def _layers(path: Path, chain: tuple[Path, ...], laid: set[Path]) -> list[tuple[str, JsonDict]]:
    """chain: of files, each extended by the one before. laid: files whose mappings stand already; gets this one's."""
    resolved = path.resolve()
    if resolved in chain:
        names = " -> ".join(str(item) for item in (*chain, resolved))
        raise ConfigError(f"{path}: configurations extend one another in a circle: {names}")
    if chain and resolved in laid:
        return []
    laid.add(resolved)
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        wanted = f" (extended by {chain[-1]})" if chain else ""
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, FileNotFoundError):
            why += where_sought(path)
        raise ConfigError(f"{path}: cannot be read{wanted}: {why}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not valid YAML: {error}") from error
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {given(document)}")
    parents = document.pop(EXTENDS, [])
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: {EXTENDS} takes a path or a list of paths, given {given(parents)}")
    layers: list[tuple[str, JsonDict]] = []
    for parent in parents:
        layers += _layers(path.parent / parent, (*chain, resolved), laid)
    return [*layers, (str(path), document)]
