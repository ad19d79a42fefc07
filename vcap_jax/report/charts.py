"""What the pictures of runs have in common: colours, axes, series of a metric, and the file.

Drawn with Matplotlib's object interface on the Agg canvas, so that nothing of a caller's pyplot state is touched and no
display is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from vcap_jax.report.metrics import Scalar
from vcap_jax.system.files import write_through

Rows = Sequence[Mapping[str, Scalar]]

# Told apart by lightness too, so the pictures survive grey printing and colour blindness.
COLOURS = ("#2b6cb0", "#dd8a26", "#2f8f6b", "#c2413b", "#7a5195", "#8a8f98")
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = COLOURS
INK = "#2d3138"
_LEGEND = 33.0
"""Width of a panel's axes in heights of a legend's letters."""
CATEGORICAL = (BLUE, ORANGE, GREY, GREEN, PURPLE, RED)


def looks(colours: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Strokes and colours that curves are told apart by: all colours with one stroke, then with the next."""
    return tuple(itertools.product(("-", "--", ":"), colours))


def small_multiples(
    count: int, columns: int, size: tuple[float, float], *, above: float = 0
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels over the steps. size: of each, and above: of what stands over all, in inches."""
    lines = max(1, math.ceil(count / columns))
    figure = Figure(figsize=(size[0] * columns, size[1] * lines + above))
    figure.set_layout_engine("constrained", h_pad=0.12, w_pad=0.1)
    panels = [figure.add_subplot(lines, columns, index + 1) for index in range(count)]
    for axes in panels:
        style_axes(axes)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for axes in panels[-columns:]:
        axes.set_xlabel("step", fontsize=9, color=INK)
    return figure, panels


def style_axes(axes: Axes) -> None:
    """Before anything is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b9bdc5")
    axes.tick_params(labelsize=8, colors=INK, color="#b9bdc5")
    axes.grid(visible=True, axis="y", color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)


def finish_axes(
    axes: Axes, title: str, *, zero: bool = False, percent: bool = False, fewest: int = 2
) -> None:
    """Once all is drawn: the title, and a legend where there are ``fewest`` labels. zero: the axis begins at 0."""
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    if zero:
        axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 0 else 1)
    _, labels = axes.get_legend_handles_labels()
    # A stroke is seen in a line of some length alone.
    handle = 1.1 if all(line.get_linestyle() == "-" for line in axes.get_lines()) else 2.6
    columns = _columns(labels, handle)
    lines = math.ceil(len(labels) / columns)
    axes.set_title(title, fontsize=10, color=INK, loc="left", pad=20 + 12 * max(0, lines - 1))
    if len(labels) >= fewest:
        # Between the title and the axes, where it hides no curve.
        axes.legend(
            fontsize=8,
            frameon=False,
            loc="lower left",
            bbox_to_anchor=(0, 0.985),
            borderaxespad=0,
            borderpad=0,
            ncols=columns,
            handlelength=handle,
            handletextpad=0.4,
            columnspacing=1.1,
            labelcolor=INK,
        )


def _columns(labels: Sequence[str], handle: float) -> int:
    """Of a legend: as many as make it no wider than a panel, at least one. It is filled column by column.
    handle: length of its lines."""
    # In heights of letters, with the line and the gaps.
    widths = [handle + 1.5 + 0.58 * len(label) for label in labels]
    for columns in range(len(widths), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) <= _LEGEND:
            return columns
    return 1


def series_of(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric's steps and values, of the rows that have it."""
    steps = np.array([row["step"] for row in rows], np.float64)
    values = np.array([row.get(key, math.nan) for row in rows], np.float64)
    there = np.array([key in row for row in rows], bool)
    return steps[there], values[there]


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over ``window`` of [S] values, over what there is at the ends, passing over NaN."""
    half = window // 2
    means = np.full(len(values), np.nan)
    for i in range(len(values)):
        near = values[max(0, i - half) : i + half + 1]
        if np.any(np.isfinite(near)):
            means[i] = np.mean(near[np.isfinite(near)])
    return means


def save_figure(figure: Figure, path: Path) -> None:
    """Writes the PNG, whole or not at all."""
    FigureCanvasAgg(figure)
    write_through(path, lambda temporary: figure.savefig(temporary, dpi=140, facecolor="white", format="png"))
