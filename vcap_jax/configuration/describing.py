"""The list of all configuration keys, for ``--help-config``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any

from vcap_jax.configuration.dialect import inline_yaml
from vcap_jax.configuration.docstrings import class_doc
from vcap_jax.configuration.schema import SchemaField, inherited_default, schema_fields, section_of, type_name

_WIDTH = 100
_HEAD = """\
Every key: type = default, and what it means. Set it in a YAML file (--config FILE) or on the command line
(section.key=value). The defaults are those that hold where no file sets the key; --print-config shows what
a command would really use.
"""


def describe(schema: type) -> str:
    """Every key with its type, its default and its meaning, as the docstring of its class says it; a section's own
    keys stand before the sections inside of it. Fields that share a meaning are listed together above it."""
    lines = [*textwrap.wrap(_HEAD, _WIDTH), "", *_section(schema, MISSING, "", heading="")]
    return "\n".join(lines) + "\n"


def _section(cls: type, default: Any, prefix: str, *, heading: str, note: str = "") -> Iterator[str]:
    """heading: "[section]", empty for the whole. note: what the section that holds it says about this one."""
    doc = class_doc(cls)
    about = " ".join(filter(None, [doc.summary, note[:1].upper() + note[1:]]))
    if heading:
        yield heading
    yield from textwrap.wrap(about, _WIDTH)
    if heading or about:
        yield ""
    fields = list(schema_fields(cls).values())
    plain = [field for field in fields if section_of(field.annotation) is None]
    for field, following in zip(plain, [*plain[1:], None], strict=True):
        yield from _key(field, inherited_default(field, default), prefix)
        entry = doc.entries.get(field.name)
        if entry is not None and (following is None or doc.entries.get(following.name) is not entry):
            yield from textwrap.wrap(entry.meaning, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    for field in fields:
        section = section_of(field.annotation)
        if section is None:
            continue
        value = inherited_default(field, default)
        path = prefix + field.name
        inside = doc.entries.get(field.name)
        yield ""
        yield from _section(
            section,
            MISSING if value is None else value,
            f"{path}.",
            heading=f"[{path}]" + ("  (null by default)" if value is None else ""),
            note="" if inside is None else inside.meaning,
        )


def _key(field: SchemaField, value: Any, prefix: str) -> list[str]:
    shown = "(required)" if value is MISSING else f"= {inline_yaml(value)}"
    text = f"{prefix}{field.name}: {type_name(field.annotation)} {shown}"
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * 8, break_long_words=False)
