"""Collected results as rows of tables, plain data for the page and for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vcap_jax.studies.arms import ACCOMPANY, STUDIES, label
from vcap_jax.studies.collect import Results
from vcap_jax.studies.estimates import Interval, Measure, level, over_seeds
from vcap_jax.studies.figures import Bar, calibration, curves, forest
from vcap_jax.studies.findings import row_level
from vcap_jax.studies.paper_figures import HEADINGS, paper_row
from vcap_jax.studies.results import SeedResult
from vcap_jax.studies.witnesses import Meetings
from vcap_jax.world.scenes import Modality

_MEASURES: tuple[Measure, ...] = ("coverage", "false_claims", "f1")
_CURVE_STEPS = 30
_ABOUT_THEORY = """Held-out captions with held-out references: how often a caption covers all m true facts of the
reference, and how often none of its errors stands at one of their slots, beside P_recall and P_coll of the same N, m, c
and n. The formulas take uniform and independent draws. Two departures from them are to be expected: both texts speak
first of what is easy to see, and errors at places where the picture has nothing collide with no fact."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its name, label, cells by heading, and the paper's figures where it has any."""

    name: str
    label: str
    cells: Mapping[str, Interval | None]
    paper: str | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A study in one modality: rows and figures (SVG). paper: heading of the rows' figures in the paper."""

    study: str
    title: str
    about: str
    modality: Modality
    rows: tuple[Row, ...]
    figures: tuple[str, ...]
    paper: str | None = None


def study_sections(
    results: Results, studies: Mapping[str, Mapping[Modality, tuple[str, ...]]]
) -> list[Section]:
    """A section for every study and modality that has results."""
    sections = []
    for name, by_modality in studies.items():
        study = STUDIES[name]
        for modality, arms in by_modality.items():
            there = results.get(modality, {})
            rows = [row for row in study.rows if there.get(row) and (row in arms or row in ACCOMPANY)]
            if not any(row in arms for row in rows):
                continue
            sections.append(
                Section(
                    study=name,
                    title=study.title,
                    about=study.about,
                    modality=modality,
                    rows=tuple(
                        Row(
                            name=row,
                            label=_label(row, modality),
                            cells=_cells(there[row], name),
                            paper=paper_row(name, modality, row),
                        )
                        for row in rows
                    ),
                    paper=HEADINGS.get((name, modality)),
                    figures=_figures(name, rows, there, modality),
                )
            )
    return sections


def theory_section(results: Results, modality: Modality) -> Section | None:
    """Pass rates of real captions beside the formula's; None without results."""
    met: dict[str, list[Meetings]] = {}
    for row in ("base", "e1", "e2"):
        seeds = results.get(modality, {}).get(row, {})
        found = [r.meetings for r in seeds.values() if r.meetings is not None and len(r.meetings.scene)]
        if found:
            met[row] = found
    if not met:
        return None
    return Section(
        study="theory",
        title="The formulas and real captions",
        about=_ABOUT_THEORY,
        modality=modality,
        rows=tuple(Row(name=row, label=label(row), cells=_rates(found)) for row, found in met.items()),
        figures=(
            calibration(
                {
                    "covers the whole reference: P_recall": {
                        label(row): _cell_rates(found, recall=True) for row, found in met.items()
                    },
                    "no error at a slot of the reference: P_coll": {
                        label(row): _cell_rates(found, recall=False) for row, found in met.items()
                    },
                }
            ),
        ),
    )


def _label(row: str, modality: Modality) -> str:
    return label(row) + (
        " (the same as - reference caption)" if row == "judge" and modality == "image" else ""
    )


def _cells(seeds: Mapping[int, SeedResult], study: str) -> dict[str, Interval | None]:
    cells: dict[str, Interval | None] = {measure: row_level(seeds, measure) for measure in _MEASURES}
    if study == "reference_size":
        cells["facts in a reference, m"] = _of(seeds, "reference_size")
        cells["early coverage"] = _of(seeds, "early_coverage")
        cells["steps to 30%"] = _of(seeds, "steps_to_level")
    return cells


def _of(seeds: Mapping[int, SeedResult], name: str) -> Interval | None:
    values = [getattr(result, name) for result in seeds.values()]
    return None if any(value is None for value in values) else over_seeds(values)


def _figures(
    study: str, rows: list[str], there: Mapping[str, Mapping[int, SeedResult]], modality: Modality
) -> tuple[str, ...]:
    bars = [
        Bar(
            label=_label(row, modality),
            intervals={measure: row_level(there[row], measure) for measure in _MEASURES},
            plain=row in ACCOMPANY,
        )
        for row in rows
    ]
    drawn = [forest(bars)]
    if study in ("reference_size", "updates", "noise"):
        learned = {
            label(row): [result.curve for result in there[row].values()]
            for row in rows
            if all(len(result.curve) for result in there[row].values())
        }
        if learned:
            for column, what in ((0, "coverage"), (1, "false claims")):
                title = f"{what} of the training captions: mean over seeds, range between them"
                drawn.append(curves(learned, steps=_CURVE_STEPS, column=column, title=title))
    return tuple(drawn)


def _rates(found: list[Meetings]) -> dict[str, Interval | None]:
    def mean(values: list[np.ndarray], *, share: bool = True) -> Interval:
        return level([m.by_scene(v) for m, v in zip(found, values, strict=True)], share=share)

    return {
        "N": mean([m.facts for m in found], share=False),
        "m": mean([m.reference for m in found], share=False),
        "c": mean([m.correct for m in found], share=False),
        "n - c": mean([m.errors for m in found], share=False),
        "covers R": mean([m.covered for m in found]),
        "P_recall": mean([m.recall for m in found]),
        "errors miss R": mean([m.clear for m in found]),
        "P_coll": mean([m.collision_free() for m in found]),
        "P_coll, errors at slots of the picture": mean([m.collision_free(at_facts=True) for m in found]),
    }


def _cell_rates(found: list[Meetings], *, recall: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted, measured and number, over cells of equal (N, m, c) or (N, m, n - c), of all seeds."""
    other = [m.correct if recall else m.errors for m in found]
    keys = np.concatenate([np.stack([m.facts, m.reference, k], 1) for m, k in zip(found, other, strict=True)])
    predicted = np.concatenate([m.recall if recall else m.collision_free() for m in found])
    measured = np.concatenate([m.covered if recall else m.clear for m in found]).astype(np.float64)
    _, cell = np.unique(keys, axis=0, return_inverse=True)
    cell = cell.reshape(-1)
    number = np.bincount(cell)
    common = number >= 20  # a rate of fewer captions says nothing
    means = [np.bincount(cell, v)[common] / number[common] for v in (predicted, measured)]
    return means[0], means[1], number[common].astype(np.float64)
