"""The published figures against what they say of themselves: sums, identities, names of metrics."""

from __future__ import annotations

import math

import pytest

from vcap_jax.evals.benchmarks.lmms_eval import SUITES, statistics
from vcap_jax.evals.benchmarks.published import PublishedTable, published, published_tables
from vcap_jax.evals.config import BENCHMARKS, EvaluatorConfig
from vcap_jax.evals.registry import load_evaluator

TABLES = published_tables()


def each(table: PublishedTable) -> dict[str, dict[str, float]]:
    return {model: table.of(model) for model in table.rows}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.benchmark}: {table.source}")
def test_metrics_are_those_that_we_measure(table: PublishedTable) -> None:
    if table.benchmark == "video-qa":
        known = set(statistics(list(SUITES.values())))
    else:
        known = set(load_evaluator(EvaluatorConfig(use=table.benchmark)).statistics("official"))  # type: ignore[attr-defined]
    assert set(table.metrics) <= known
    assert table.judge
    assert table.source


def test_every_benchmark_of_the_paper_has_figures() -> None:
    assert {table.benchmark for table in TABLES} == {*BENCHMARKS, "video-qa"}
    assert published("prism-vstar")[0].of("VCap (e2)") == {"accuracy": 52.88}


def test_averages_are_means_of_their_parts() -> None:
    parts = {
        "capmas": ("clair", "coverage", "factuality"),
        "decapbench": ("precision", "recall"),
        "vdc": tuple(
            f"accuracy/{name}" for name in ("background", "camera", "detailed", "main_object", "short")
        ),
        "caparena-auto": ("score/gpt", "score/cog", "score/cpm"),
    }
    totals = {"capmas": "average", "decapbench": "average", "vdc": "accuracy", "caparena-auto": "score"}
    checked = 0
    for benchmark, names in parts.items():
        for table in published(benchmark):
            for model, figures in each(table).items():
                if totals[benchmark] in figures:
                    mean = sum(figures[name] for name in names) / len(names)
                    # Some cells have one decimal.
                    assert figures[totals[benchmark]] == pytest.approx(mean, abs=0.051), (benchmark, model)
                    checked += 1
    assert checked > 40


def test_ar_is_what_is_covered_and_right() -> None:
    for table in published("vcapsbench"):
        for model, figures in each(table).items():
            ar = figures["cr"] * (1 - figures["ir"] / 100)
            assert figures["ar"] == pytest.approx(ar, abs=0.02), model


def test_f1_of_dream_is_harmonic() -> None:
    for table in published("dream1k"):
        for figures in each(table).values():
            if "recall" in figures:
                recall, precision = figures["recall"], figures["precision"]
                assert figures["f1"] == pytest.approx(2 * recall * precision / (recall + precision), abs=0.06)


def test_prism_cells_are_whole_answers() -> None:
    sizes = {"ai2d": 3088, "mmstar": 1500, "realworldqa": 765, "vstar": 191}
    for name, size in sizes.items():
        (table,) = published(f"prism-{name}")
        for model, figures in each(table).items():
            answers = figures["accuracy"] * size / 100
            assert abs(answers - round(answers)) < 0.006 * size / 100 + 1e-6, (name, model)


def test_rows_and_metrics_fit() -> None:
    with pytest.raises(ValueError, match="2 figures of 1 metrics"):
        PublishedTable(benchmark="b", source="s", judge="j", metrics=("m",), rows={"x": (1.0, math.inf)})
