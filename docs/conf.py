"""Sphinx settings of the documentation site. Built by ``bash docs/build.sh``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import generate  # noqa: E402

import vcap_jax  # noqa: E402

project = "VCap-JAX"
author = "the VCap-JAX authors"
project_copyright = author
release = version = vcap_jax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_numpy_docstring = False
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["generated", "_static"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

smartquotes = False  # they would make a dash of the two in --option
html_theme = "furo"
html_title = "VCap-JAX"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False

# Every link and every cross-reference must lead somewhere. Two kinds are left out: types in signatures are mostly
# JAX's and numpy's, whose pages a build without network cannot look up, and docstrings refer to modules that this
# site does not show.
nitpicky = True
nitpick_ignore_regex = [("py:(class|mod|data|exc|obj)", r".*")]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88

_NAMES = r"[a-z][A-Za-z0-9_]*(?:, [a-z][A-Za-z0-9_]*)*"
_ENTRY = re.compile(rf"(?:^|(?<=\. ))(?P<names>{_NAMES}): ")


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def _entries(block: list[str]) -> Iterator[str]:
    """The lines of a docstring's paragraph, each with the indented ones that go on with it, cut at its entries."""
    joined: list[str] = []
    for line in block:
        if joined and not (_ENTRY.match(line) or re.match(r"(?:Raises|Returns)\b", line)):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line.strip())
    for text in joined:
        cuts = [match.start() for match in _ENTRY.finditer(text)]
        starts = sorted({0, *cuts})
        for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
            part = text[start:stop].strip()
            entry = _ENTRY.match(part)
            if entry is None:
                yield part
                continue
            names = ", ".join(f"**{name}**" for name in entry["names"].split(", "))
            yield f"* {names}: {part[entry.end() :]}"


def list_entries(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turns this project's docstrings into reStructuredText: ``name: meaning`` becomes an item of a list, and
    blocks that are indented as a whole stay as they are (code). Sections like ``Raises:`` are napoleon's."""
    del app, what, name, obj, options
    made: list[str] = []
    for block in _paragraphs(lines):
        if block[0].startswith((" ", ":")) or block[0].endswith("::"):
            made += [*block, ""]
            continue
        for part in _entries(block):
            if part.startswith("* ") and len(made) > 1 and made[-2].startswith("* "):
                made.pop()  # one list
            made += [part, ""]
    lines[:] = made


def setup(app: Any) -> None:
    generate.write_all(HERE / "generated")
    app.connect("autodoc-process-docstring", list_entries)
