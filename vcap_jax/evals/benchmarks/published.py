"""Figures that others have published, from ``published.yaml``: by benchmark, each with its judge and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pydantic import TypeAdapter

from vcap_jax.configuration.dialect import parse_yaml


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Figures of one benchmark by one judge.

    metrics: names of our statistics. rows: by model, a figure for each metric, None where none is given. judge: who
    scored, in words. source: where it is printed. note: what to know of it, "" for nothing.
    """

    benchmark: str
    source: str
    judge: str
    metrics: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    note: str = ""

    def __post_init__(self) -> None:
        for model, figures in self.rows.items():
            if len(figures) != len(self.metrics):
                raise ValueError(
                    f"{self.benchmark}, {model}: {len(figures)} figures of {len(self.metrics)} metrics"
                )

    def of(self, model: str) -> dict[str, float]:
        """A model's figures by metric. Raises KeyError."""
        return {
            name: figure
            for name, figure in zip(self.metrics, self.rows[model], strict=True)
            if figure is not None
        }


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """All of them, in the order of the file."""
    text = resources.files("vcap_jax.evals.benchmarks").joinpath("published.yaml").read_text(encoding="utf-8")
    return TypeAdapter(tuple[PublishedTable, ...]).validate_python(parse_yaml(text))


def published(benchmark: str) -> tuple[PublishedTable, ...]:
    """Those of a benchmark."""
    return tuple(table for table in published_tables() if table.benchmark == benchmark)
