"""The list of all configuration keys, for ``--help-config``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from vcap_jax.configuration.schema import Section, sections

_WIDTH = 100
_HEAD = """\
Every key: type = default, and what it means. Set it in a YAML file (--config FILE) or on the command line
(section.key=value). The defaults are those that hold where no file sets the key; --print-config shows what
a command would really use.
"""


def describe(schema: type) -> str:
    """Every key of a settings class with its type and bounds, its default and its meaning; a section's own keys stand
    before the sections inside of it."""
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
