"""A comparison as text for a terminal, and as one HTML page that needs no other file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.evals.benchmarks.comparison import (
    LOWER_IS_BETTER,
    NEITHER,
    Comparison,
    Difference,
    PublishedTable,
    Result,
)
from vcap_jax.evals.benchmarks.results import spread
from vcap_jax.report import pages
from vcap_jax.report.pages import text_table

ENOUGH = 10
"""Samples below which nothing is called better or worse: percentile bootstraps of few are too narrow. Of differences
that are nothing but noise 14% would be called so with 6 samples, 24% with 3, and all with a single one; with 10 it is
still 9%, with 40 6%."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """text: the figure. interval: of it, and of how many samples it is (``spread``); "" for no figure. kind: "better",
    "worse" or "" where the interval of a difference holds 0, it or a part that counts alike in it is of fewer than
    ``ENOUGH`` samples, or nothing is better."""

    text: str
    interval: str = ""
    kind: str = ""


def figure(name: str, result: Result) -> Cell:
    """A figure with its interval."""
    value = result.metrics.get(name)
    if value is None or math.isnan(value.value):
        return Cell(text="-")
    return Cell(text=f"{value.value:.2f}", interval=spread(value, result.clusters))


def change(name: str, difference: Difference) -> Cell:
    """A difference with its interval."""
    value = difference.values.get(name)
    if value is None or math.isnan(value.value):
        return Cell(text="-")
    kind, enough = "", difference.smallest[name] >= ENOUGH
    if enough and (value.low > 0 or value.high < 0) and name not in NEITHER:
        kind = "better" if (value.value > 0) != (name in LOWER_IS_BETTER) else "worse"
    return Cell(text=f"{value.value:+.2f}", interval=spread(value, difference.clusters, "+"), kind=kind)


def as_text(comparisons: Sequence[Comparison]) -> str:
    """All tables, for a terminal of any width."""
    return "\n\n".join(_one_as_text(comparison) for comparison in comparisons) + "\n"


def write_page(path: Path, comparisons: Sequence[Comparison]) -> None:
    """The HTML page."""
    templates = pages.page_templates("vcap_jax.evals.benchmarks")
    templates.globals.update(
        figure=figure, change=change, counted=counted, shown=shown_metrics, enough=ENOUGH
    )
    pages.write_page(path, templates, "comparison.html", comparisons=comparisons)


def counted(result: Result) -> str:
    """How many items a result is of, and what is missing of them."""
    parts = [f"{len(result.items)} items"]
    parts += [f"{result.failed} failed"] if result.failed else []
    parts += [f"{result.incomplete} lack a part"] if result.incomplete else []
    return ", ".join(parts)


def shown_metrics(table: PublishedTable, comparison: Comparison) -> tuple[str, ...]:
    """Metrics of published figures, in the order of the comparison's; those that it lacks last."""
    known = [name for name in comparison.metrics if name in table.metrics]
    return (*known, *(name for name in table.metrics if name not in known))


def _one_as_text(comparison: Comparison) -> str:
    first = comparison.results[0]
    parts = [f"== {comparison.benchmark}"]
    parts += [
        f"{result.label}: {counted(result)}; {result.mode}; scored by {result.judges} ({result.folder})"
        for result in comparison.results
    ]
    rows = [["", *(result.label for result in comparison.results)]]
    for name in comparison.metrics:
        cells = [figure(name, result) for result in comparison.results]
        rows.append(
            [name, *(f"{cell.text} ({cell.interval})" if cell.interval else cell.text for cell in cells)]
        )
    parts.append(text_table(rows, numbers=True))
    for difference in comparison.differences:
        parts.append(_difference(comparison, difference, first.label))
    for table in comparison.tables:
        note = f"; {table.note}" if table.note else ""
        head = f"published: {table.source}. Judge: {table.judge}{note}"
        names = shown_metrics(table, comparison)
        body = [
            [model, *(f"{of[name]:.2f}" if name in of else "-" for name in names)]
            for model, of in ((model, table.of(model)) for model in table.rows)
        ]
        parts.append(f"{head}\n{text_table([['', *names], *body], numbers=True)}")
    return "\n\n".join(parts)


def _difference(comparison: Comparison, difference: Difference, first: str) -> str:
    head = f"{difference.result.label} minus {first}"
    if difference.unlike:
        return f"{head}: not computed, {difference.unlike}"
    rows = [["", "difference", "95% interval", ""]]
    for name in comparison.metrics:
        cell = change(name, difference)
        rows.append([name, cell.text, cell.interval, cell.kind])
    items = f"{difference.items} item{'s' * (difference.items != 1)}"
    return f"{head}, over the {items} that both have\n{text_table(rows, numbers=True)}"
