"""What all pages have in common: how their templates are read, one frame (page.html) and one style sheet (page.css);
and tables for a terminal, which some of them are told as."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jinja2

from vcap_jax.system.files import replace_file


def page_templates(package: str) -> jinja2.Environment:
    """The templates of a package's pages, each of which extends page.html: a head, the style sheet that all share, and
    the blocks title, style and body.

    Whatever is put in is escaped, and a name that is not known is an error.
    """
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("vcap_jax.report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(path: Path, templates: jinja2.Environment, template: str, /, **values: object) -> None:
    """Writes the page that ``template`` makes of ``values``, whole or not at all."""
    replace_file(path, templates.get_template(template).render(values).encode())


def text_table(rows: Sequence[Sequence[str]], *, numbers: bool) -> str:
    """Columns divided by two blanks. numbers: all but the first stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if numbers and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


@contextmanager
def told_if_not_drawn(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """For a page or a plot of work that goes on. One that cannot be drawn, for whatever reason, is told: it would end
    the work: of a run with the steps since the last checkpoint, of an evaluation with its figures."""
    try:
        yield
    except Exception as error:
        say(f"{path} could not be drawn: {type(error).__name__}: {error}. All else goes on")
