"""The configuration reference: every key of a settings class as Markdown, for the documentation."""

from __future__ import annotations

from vcap_jax.configuration.schema import Key, sections


def markdown(schema: type) -> str:
    """A heading for each section, an entry for each key: type and bounds, default, meaning.

    Headings begin at the second level: the page that holds this has the title.
    """
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
