"""Plots of the report as inline SVG: text stays text, and the page needs no other file."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vcap_jax.report.charts import BLUE, COLOURS, looks
from vcap_jax.studies.estimates import MEASURES, Interval, Measure

_INK, _SOFT, _LINE = "#22262d", "#636b78", "#dde1e7"
_styled = mpl.rc_context(
    {"svg.fonttype": "none", "svg.hashsalt": "vcap", "font.family": "sans-serif", "font.size": 9}
)
"""Decorates what draws a figure, with what all figures have in common."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of ``forest``: its label and its interval in each measure. Plain rows are drawn in grey."""

    label: str
    intervals: Mapping[Measure, Interval]
    plain: bool = False


@_styled
def forest(rows: Sequence[Bar]) -> str:
    """Rows from top to bottom, a panel for each measure: the mean with its interval, and every seed as a ring."""
    figure = Figure(figsize=(9.2, 0.34 * len(rows) + 0.9), layout="constrained")
    measures: tuple[Measure, ...] = ("coverage", "false_claims")
    axes = figure.subplots(1, len(measures), sharey=True)
    places = np.arange(len(rows))[::-1]
    for axis, measure in zip(axes, measures, strict=True):
        _plain(axis)
        axis.grid(axis="x", color=_LINE, linewidth=0.7)
        for y, row in zip(places, rows, strict=True):
            interval = row.intervals[measure]
            colour = _SOFT if row.plain else BLUE
            if not math.isnan(interval.low):
                low, high = interval.low, interval.high
                axis.plot([low, high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
            axis.plot(
                interval.by_seed, [y] * interval.seeds, "o", color=colour, markersize=5, fillstyle="none"
            )
            axis.plot([interval.value], [y], "|", color=colour, markersize=13, markeredgewidth=2.2)
        axis.set_title(MEASURES[measure], fontsize=9, color=_SOFT, loc="left")
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_yticks(places, [row.label for row in rows])
    axes[0].set_ylim(-0.6, len(rows) - 0.4)
    return _svg(figure, "Means over seeds with 95% intervals; rings are single seeds")


@_styled
def curves(arms: Mapping[str, Sequence[np.ndarray]], *, steps: int, column: int, title: str) -> str:
    """A line for each arm: the mean over its seeds, step by step, and the range between them.

    arms: by label, of each seed an array [T, 2] (coverage, false claims); column: which of the two.
    """
    figure = Figure(figsize=(6.6, 3.2), layout="constrained")
    axis = figure.subplots()
    _plain(axis)
    axis.grid(color=_LINE, linewidth=0.7)
    for (stroke, colour), (label, runs) in zip(itertools.cycle(looks(COLOURS)), arms.items(), strict=False):
        length = min(steps, *(len(run) for run in runs))
        values = np.stack([run[:length, column] for run in runs])
        x = np.arange(1, length + 1)
        axis.plot(x, values.mean(axis=0), color=colour, linestyle=stroke, label=label)
        axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel="step")
    axis.set_title(title, fontsize=9, color=_SOFT, loc="left")
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.legend(frameon=False, fontsize=8)
    return _svg(figure, title)


@_styled
def calibration(points: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]) -> str:
    """Measured against predicted pass rates, a panel for each test.

    points: by panel and row: predicted, measured and number of captions, an array each. Area goes with the number.
    """
    figure = Figure(figsize=(8.4, 3.7), layout="constrained")
    axes = figure.subplots(1, len(points), squeeze=False)[0]
    for axis, (panel, rows) in zip(axes, points.items(), strict=True):
        _plain(axis)
        axis.plot([0, 1], [0, 1], color=_SOFT, linewidth=0.8, linestyle=":")
        for colour, (label, (predicted, measured, number)) in zip(COLOURS, rows.items(), strict=False):
            area = 160 * number / max(float(number.max(initial=0)), 1.0)
            axis.scatter(predicted, measured, s=area + 6, color=colour, alpha=0.55, linewidths=0, label=label)
        axis.set(xlabel="the formula says", ylabel="measured", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        axis.set_title(panel, fontsize=9, color=_SOFT, loc="left")
        axis.set_aspect("equal")
    for mark in axes[-1].legend(frameon=False, fontsize=8).legend_handles:
        if mark is not None and hasattr(mark, "set_sizes"):
            mark.set_sizes([40])
    return _svg(figure, "Measured against predicted pass rates")


def _plain(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(_LINE)
    axis.tick_params(colors=_INK, length=0)
    axis.set_axisbelow(True)


def _svg(figure: Figure, title: str) -> str:
    """The figure as an <svg> element, without the XML prologue, with a title for those who do not see it."""
    FigureCanvasSVG(figure)
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata={"Date": None, "Title": title})
    text = target.getvalue()
    return text[text.index("<svg") :]
