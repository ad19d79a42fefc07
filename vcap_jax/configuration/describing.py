"""Every key of a settings class with its type and bounds, its default and its meaning: as text for ``--help-config``,
and as Markdown for the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from vcap_jax.configuration.schema import Key, Section, sections

_WIDTH = 100
_HEAD = """\
Every key: type = default, and what it means. Set it in a YAML file (--config FILE) or on the command line
(section.key=value). The defaults are those that hold where no file sets the key; --print-config shows what
a command would really use.
"""


def describe(schema: type) -> str:
    """As text; a section's own keys stand before the sections inside of it."""
    lines = [*textwrap.wrap(_HEAD, _WIDTH), ""]
    for section in sections(schema):
        lines += _section(section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: Section) -> Iterator[str]:
    if section.path:
        yield f"[{section.path}]" + ("  (null by default)" if section.absent else "")
    yield from textwrap.wrap(section.about, _WIDTH)
    if section.path or section.about:
        yield ""
    for key in section.keys:
        text = f"{key.path}: {key.type} " + (f"= {key.default}" if key.default else "(required)")
        yield from textwrap.wrap(text, _WIDTH, subsequent_indent=" " * 8, break_long_words=False)
        yield from textwrap.wrap(key.meaning, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    yield ""


def markdown(schema: type) -> str:
    """With headings from the second level on: the page that holds this has the title."""
    blocks = []
    for section in sections(schema):
        null = " (null by default)" if section.absent else ""
        blocks.append(f"## `{section.path}`{null}" if section.path else "## At the top")
        blocks += [section.about, *map(_entry, section.keys)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _entry(key: Key) -> str:
    default = f"default `{key.default}`" if key.default else "required"
    lines = [f"- **`{key.path}`**: `{key.type}`, {default}", f"  {key.meaning}"]
    return "\n\n".join(lines if key.meaning else lines[:1])
