"""The configuration reference: every key of a schema as Markdown, for the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any

from vcap_jax.configuration.dialect import inline_yaml
from vcap_jax.configuration.docstrings import class_doc
from vcap_jax.configuration.schema import inherited_default, schema_fields, section_of, type_name


def markdown(schema: type) -> str:
    """A section for each section of the configuration, an entry for each key: type, default and meaning.

    It begins at the second level of headings; the page that holds it has the title.
    """
    return "\n".join(_section(schema, MISSING, "", "")).strip() + "\n"


def _section(cls: type, default: Any, prefix: str, note: str) -> Iterator[str]:
    """note: what the section that holds it says about this one."""
    doc = class_doc(cls)
    yield f"## {prefix.rstrip('.') or 'At the top'}\n"
    if about := " ".join(filter(None, [doc.summary, note[:1].upper() + note[1:]])):
        yield f"{about}\n"
    inside = []
    for field in schema_fields(cls).values():
        value = inherited_default(field, default)
        meaning = doc.entries[field.name].meaning if field.name in doc.entries else ""
        if (section := section_of(field.annotation)) is not None:
            inside.append((section, MISSING if value is None else value, f"{prefix}{field.name}.", meaning))
            continue
        shown = "required" if value is MISSING else f"default `{inline_yaml(value)}`"
        yield f"- **`{prefix}{field.name}`**: {type_name(field.annotation)}, {shown}\n\n  {meaning}\n"
    for section in inside:
        yield from _section(*section)
