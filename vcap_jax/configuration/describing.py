"""The list of all configuration keys, for ``--help-config``."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
import typing
from dataclasses import MISSING, is_dataclass
from typing import Any

from vcap_jax.configuration.dialect import inline_yaml
from vcap_jax.configuration.schema import inherited_default, schema_fields, section_of, type_name


def describe(schema: type) -> str:
    """Every key with its type, its default and the comment or docstring beside it in the schema."""
    lines: list[str] = []

    def walk(cls: type, default: Any, prefix: str) -> None:
        comments = _field_comments(cls)
        for field in schema_fields(cls).values():
            value = inherited_default(field, default)
            section = section_of(field.annotation)
            path = prefix + field.name
            if section is None:
                shown = "(required)" if value is MISSING else f"= {inline_yaml(value)}"
                lines.append(f"{path}: {type_name(field.annotation)} {shown}")
            else:
                lines.extend(["", f"[{path}]" + ("  (absent by default)" if value is None else "")])
            if comment := comments.get(field.name):
                lines.append(textwrap.fill(comment, 100, initial_indent="    ", subsequent_indent="    "))
            if section is not None:
                walk(section, MISSING if value is None else value, f"{path}.")

    walk(schema, MISSING, "")
    return "\n".join(lines).strip() + "\n"


def _field_comments(cls: type) -> dict[str, str]:
    """What the source says about each field: a docstring below it, or comments above it and on its line."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not is_dataclass(owner):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(owner))
        except (OSError, TypeError):
            continue  # defined interactively: there is no source to read
        comments: dict[int, tuple[bool, str]] = {}  # line -> (stands alone, text)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                alone = token.line.lstrip().startswith("#")
                comments[token.start[0]] = (alone, token.string.lstrip("#:").strip())
        definition = typing.cast(ast.ClassDef, ast.parse(source).body[0])
        for node, below in zip(definition.body, [*definition.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            parts: list[str] = []
            line = node.lineno - 1
            while comments.get(line, (False, ""))[0]:
                parts.insert(0, comments[line][1])
                line -= 1
            parts += [comments[n][1] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in comments]
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                parts.append(" ".join(str(below.value.value).split()))
            if parts:
                found[node.target.id] = " ".join(parts)
    return found
