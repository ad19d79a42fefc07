"""Arms as text for a terminal, and as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import itertools
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
from matplotlib.axes import Axes

from vcap_jax.report.arms import REWARD, Arm, PastRun, Spread
from vcap_jax.report.charts import (
    CATEGORICAL,
    INK,
    finish_axes,
    looks,
    moving_average,
    save_figure,
    series_of,
    small_multiples,
)
from vcap_jax.report.pages import page_templates, text_table, write_page

Curve = Callable[[PastRun], tuple[np.ndarray, np.ndarray]]
"""Steps and values of a run."""

_LOGGED = {REWARD: "Reward", "length/mean": "Caption tokens"}
_USUAL = "the settings of most"
_COLUMNS = 3
_MOST_NAMES = 3
_LOOKS = looks(CATEGORICAL)
"""Strokes and colours of the arms."""
_SHORT = 12
"""Points of a curve up to which each is marked."""


def as_text(arms: Sequence[Arm]) -> str:
    """The arms and their figures, for a terminal."""
    head = ["", "runs", "seeds", "steps", ""]
    about = [[_name(k), _folders(arm), *_done(arm)] for k, arm in enumerate(arms)]
    parts = [text_table([head, *about], numbers=False)]
    for figure, rows in _tables(arms).items():
        parts.append(text_table([(figure, "start", "now", "change"), *rows], numbers=False))
    parts += [
        f"seed {one.seed} counts twice in {_name(k)}, as {one.folder} and {other.folder}: leave one out if it is a copy"
        for k, arm in enumerate(arms)
        for one, other in arm.twice
    ]
    parts.append(textwrap.fill(_NOTE, 100))
    return "\n\n".join(parts) + "\n"


def write_arms_page(path: Path, arms: Sequence[Arm]) -> None:
    """The page, with links to the runs' own."""
    about = [(_name(k), *_done(arm), _links(path, arm)) for k, arm in enumerate(arms)]
    write_page(
        path,
        page_templates("vcap_jax.report"),
        "arms.html",
        title="Runs side by side",
        arms=about,
        tables=_tables(arms),
        note=_NOTE,
        again=_name(len(_LOOKS)) if len(arms) > len(_LOOKS) else None,
        picture=base64.b64encode(_picture(arms)).decode(),
    )


_NOTE = (
    "Means over the runs of an arm; in brackets the lowest and the highest run. An arm is one configuration with "
    "several seeds. The reward is its mean over the first and the last tenth of the steps. Without a start: one of the "
    "runs was not measured before its first step."
)


def _name(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"A{number}"


def _folders(arm: Arm) -> str:
    """Their names; of many the first and the last."""
    names = [run.folder.name for run in arm.runs]
    return " ".join(names if len(names) <= _MOST_NAMES else [names[0], "...", names[-1]])


def _done(arm: Arm) -> tuple[str, str, str]:
    """Seeds, steps, and what tells it from most others."""
    fewest, most = arm.steps
    seeds = " ".join(str(run.seed) for run in arm.runs)
    return seeds, f"{most}" if fewest == most else f"{fewest} to {most}", ", ".join(arm.label) or _USUAL


def _tables(arms: Sequence[Arm]) -> dict[str, list[tuple[str, str, str, str]]]:
    """Rows by figure, in the evaluators' own order; the reward last."""
    spreads = [arm.spreads() for arm in arms]
    figures = sorted(dict.fromkeys(name for of in spreads for name in of), key=lambda name: name == REWARD)
    return {
        figure: [(_name(k), *_cells(of.get(figure))) for k, of in enumerate(spreads)] for figure in figures
    }


def _cells(spread: Spread | None) -> tuple[str, str, str]:
    """Start, now and change in words."""
    if spread is None:
        return "-", "-", "-"
    now = f"{spread.now:.4g}"
    if spread.runs > 1:
        now += f" ({spread.low:.4g} to {spread.high:.4g})"
    if spread.start is None:
        return "-", now, "-"
    change = f"{spread.change:+.4g}"
    if spread.runs > 1:
        change += f" ({spread.change_low:+.4g} to {spread.change_high:+.4g})"
    return f"{spread.start:.4g}", now, change


def _links(page: Path, arm: Arm) -> list[tuple[str, str]]:
    """By run its title and where its samples are, "" where there is no page of them."""
    found = []
    for run in arm.runs:
        samples = run.folder / "samples.html"
        # As in an address, where "#" and "%" mean something else.
        where = quote(os.path.relpath(samples, page.resolve().parent)) if samples.exists() else ""
        found.append((run.title, where))
    return found


def _curves(arms: Sequence[Arm]) -> Iterator[tuple[str, Curve]]:
    """What is drawn, by title: of each run its evaluations, its reward and its lengths."""
    runs = [run for arm in arms for run in arm.runs]
    measured = dict.fromkeys(
        (name, metric)
        for run in runs
        for name, several in run.evaluations.items()
        if len(several) > 1
        for results in several  # the first may lack what a judge that was gone then gives
        for metric in results.metrics
    )
    for name, metric in measured:
        yield f"{name}: {metric.replace('_', ' ')}", partial(_measured, name=name, metric=metric)
    for key, title in _LOGGED.items():
        if any(key in row for run in runs for row in run.rows[:1]):
            yield title, partial(_logged, key=key)


def _logged(run: PastRun, key: str) -> tuple[np.ndarray, np.ndarray]:
    return series_of(run.rows, key)


def _measured(run: PastRun, name: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    there = [results for results in run.evaluations.get(name, ()) if metric in results.metrics]
    return (
        np.array([results.step or 0 for results in there], np.float64),
        np.array([results.metrics[metric].value for results in there], np.float64),
    )


def _picture(arms: Sequence[Arm]) -> bytes:
    """Every curve, a colour for each arm: thin lines are runs, the thick one is their mean."""
    curves = list(_curves(arms))
    columns = max(1, min(_COLUMNS, len(curves)))
    figure, panels = small_multiples(len(curves), columns, (4.6, 3.2))
    for axes, (title, curve) in zip(panels, curves, strict=True):
        for number, (arm, (stroke, colour)) in enumerate(zip(arms, itertools.cycle(_LOOKS), strict=False)):
            _draw(axes, [curve(run) for run in arm.runs], colour, stroke, _name(number))
        axes.set_xlabel("step", fontsize=9, color=INK)
        finish_axes(axes, title, fewest=1 if len(arms) > 1 else 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arms.png"
        save_figure(figure, path)
        return path.read_bytes()


def _draw(
    axes: Axes, runs: Sequence[tuple[np.ndarray, np.ndarray]], colour: str, stroke: str, label: str
) -> None:
    runs = [
        (steps, moving_average(values, max(1, len(values) // 20))) for steps, values in runs if len(steps)
    ]
    if not runs:
        return
    mark = "o" if max(len(steps) for steps, _ in runs) <= _SHORT else None
    if len(runs) > 1:
        for steps, values in runs:
            axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.45)
    # Over the steps that all of them have.
    by_step = [dict(zip(steps.tolist(), values, strict=True)) for steps, values in runs]
    common = sorted(set.intersection(*map(set, by_step)))
    means = [np.mean([of[step] for of in by_step]) for step in common]
    axes.plot(
        common, means, color=colour, linewidth=1.9, linestyle=stroke, label=label, marker=mark, markersize=3
    )
