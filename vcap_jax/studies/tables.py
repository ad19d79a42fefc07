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
from vcap_jax.studies.results import SeedResult
from vcap_jax.studies.witnesses import Meetings
from vcap_jax.world.scenes import Modality

_MEASURES: tuple[Measure, ...] = ("coverage", "false_claims", "f1")
_CURVE_STEPS = 30
_ABOUT_THEORY = """Held-out captions with held-out references: how often a caption covers all m true facts of the
reference, and how often none of its errors stands at one of their slots, beside P_recall and P_coll of the same N, m, c
and n. The formulas take uniform and independent draws. Two departures from them are to be expected: both texts speak
first of what is easy to see, and errors at places where the picture has nothing collide with no fact."""
_BASE = "71.30, 76.25; 55.61, 82.73"
_E1 = "73.95, 81.48; 58.83, 87.80"
_E2 = "74.18, 86.42; 60.92, 86.42"
_IMAGE = "CapMAS Coverage, Factuality; DeCap Recall, Precision"
_VIDEO = "VCapsBench AR, IR (less is better); VDC Avg"
_PAPER: Mapping[tuple[str, Modality], tuple[str, Mapping[str, str]]] = {
    ("main", "image"): (f"paper, Table 1: {_IMAGE}", {"base": _BASE, "e1": _E1, "e2": _E2}),
    ("main", "video"): (
        f"paper, Table 2: {_VIDEO}",
        {"base": "63.28, 11.77; 30.78", "e1": "71.34, 14.01; 35.21", "e2": "72.15, 13.67; 36.01"},
    ),
    ("distillation", "image"): (
        f"paper, Table 3: {_IMAGE}",
        {
            "base": _BASE,
            "from_self": "71.09, 77.02; 54.95, 80.98",
            "e1": _E1,
            "from_e1": "73.00, 84.37; 58.56, 86.50",
            "e2": _E2,
            "from_e2": "73.71, 86.29; 59.75, 86.22",
        },
    ),
    ("ablations", "image"): (
        f"paper, Table 5: {_IMAGE}",
        {
            "base": _BASE,
            "e1": _E1,
            "no_reference": "70.24, 76.27; 53.24, 85.80",
            "no_image": "73.77, 81.37; 56.45, 86.87",
            "no_correctness": "73.34, 76.03; 58.64, 86.96",
            "no_completeness": "72.94, 80.98; 55.26, 87.91",
            "no_text_quality": "74.18, 81.00; 58.60, 87.43",
        },
    ),
    ("ablations", "video"): (
        f"paper, Table 7: {_VIDEO}",
        {
            "base": "63.28, 11.77; 33.76",
            "e1": "71.34, 14.01; 35.43",
            "no_reference": "65.75, 12.94; 33.97",
            "no_correctness": "69.14, 13.21; 35.26",
            "no_completeness": "69.41, 12.16; 34.69",
            "no_text_quality": "70.73, 12.53; 35.29",
            "no_local": "70.94, 12.81; 35.18",
        },
    ),
}
"""The paper's own figures for rows of our tables, to stand beside them: what they are (per cent, its benchmarks, its
model of 8B), and by row."""


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
            heading, paper = _PAPER.get((name, modality), (None, {}))
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
                            paper=paper.get(row),
                        )
                        for row in rows
                    ),
                    paper=heading,
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
    panels = {
        "covers the whole reference: P_recall": True,
        "no error at a slot of the reference: P_coll": False,
    }
    rates = {
        panel: {label(row): _cell_rates(found, recall=recall) for row, found in met.items()}
        for panel, recall in panels.items()
    }
    return Section(
        study="theory",
        title="The formulas and real captions",
        about=_ABOUT_THEORY,
        modality=modality,
        rows=tuple(Row(name=row, label=label(row), cells=_rates(found)) for row, found in met.items()),
        figures=(calibration(rates),),
    )


def _label(row: str, modality: Modality) -> str:
    same = " (the same as - reference caption)" if row == "judge" and modality == "image" else ""
    return label(row) + same


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
