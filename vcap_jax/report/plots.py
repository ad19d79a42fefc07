"""Pictures of a run: small multiples of its metrics over the steps, and the final comparison with the references."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vcap_jax.report.charts import (
    BLUE,
    CATEGORICAL,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    Rows,
    finish_axes,
    looks,
    moving_average,
    save_figure,
    series_of,
    small_multiples,
    style_axes,
)
from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.summary import FactRow, Share, measured_share


@dataclass(frozen=True)
class Line:
    """One metric in a panel: its key, its name in the legend, its colour and stroke."""

    key: str
    label: str
    color: str
    stroke: str = "-"


Panel = tuple[tuple[str, ...], Callable[[Axes, Rows], None]]
"""The keys that a panel speaks of, and what draws it."""


def plot_run(
    rows: Rows,
    path: str | Path,
    *,
    title: str = "",
    evaluations: Mapping[str, Sequence[Results]] = MappingProxyType({}),
) -> None:
    """Draws the metrics of a run into a PNG, one panel for each matter that the rows speak of.

    evaluations: by evaluator, each drawn with its intervals if the policy was evaluated at two steps or more.
    Thin lines are the values, thick ones their moving average. Panels whose keys no row has are left out;
    facts are drawn where rows have ``facts/coverage`` and the like. Rows may be empty.
    """
    keys = dict.fromkeys(key for row in rows for key in row)
    reward, *others = _PANELS
    candidates = [reward, *component_panels(keys), *others]
    panels = [draw for wanted, draw in candidates if any(key in keys for key in wanted)]
    measured = [draw for name, several in evaluations.items() for draw in evaluation_panels(name, several)]
    panels[1:1] = measured  # beside the reward, which they are held against
    columns = 4 if len(panels) > 9 else 3 if len(panels) > 4 else max(1, min(2, len(panels)))
    figure, places = small_multiples(len(panels), columns, (4.4, 3.0), above=0.5)
    if title:
        figure.suptitle(title, fontsize=12, color=INK, x=0.01, ha="left", parse_math=False)
    for axes, draw in zip(places, panels, strict=True):
        draw(axes, rows)
    if not panels:
        figure.text(0.5, 0.5, "no steps yet", ha="center", color=GREY)
    save_figure(figure, Path(path))


def plot_comparison(summary: Mapping[str, FactRow], path: str | Path, *, title: str = "") -> None:
    """Draws coverage and hallucination of the references, the start and the trained policy with their
    intervals.

    Args:
        summary: by "references", "start" and "trained"; what is not there is not drawn.
        path: the PNG.
    """
    colors = {"references": GREY, "start": ORANGE, "trained": BLUE}
    names = [name for name in colors if name in summary]
    figure = Figure(figsize=(8.4, 3.0), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=12, color=INK, x=0.01, ha="left", parse_math=False)
    headings: dict[Share, str] = {
        "coverage": "True facts covered (higher is better)",
        "hallucination": "False claims (lower is better)",
    }
    for index, (share, heading) in enumerate(headings.items()):
        axes = figure.add_subplot(1, 2, index + 1)
        style_axes(axes)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x", color="#e4e6ea", linewidth=0.8)
        reach = 0.0
        for row, name in enumerate(names):
            measured = measured_share(summary[name], share)
            if measured is None:
                axes.text(0, row, "  nothing claimed", va="center", fontsize=9, color=GREY)
                continue
            value, low, high = measured
            axes.barh(row, value, height=0.58, color=colors[name])
            axes.plot([low, high], [row, row], color=INK, linewidth=1.4, solid_capstyle="butt")
            for end in (low, high):
                axes.plot([end, end], [row - 0.11, row + 0.11], color=INK, linewidth=1.4)
            axes.annotate(
                f"{value:.1%}",
                (max(value, high), row),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=10,
                color=INK,
            )
            reach = max(reach, high)
        axes.set_yticks(range(len(names)), names if index == 0 else [""] * len(names), fontsize=10)
        axes.set_ylim(len(names) - 0.5, -0.5)
        # Room for the number right of the longest bar; coverage is always seen against the whole.
        axes.set_xlim(0, 1.15 if share == "coverage" else max(0.05, reach * 1.25))
        if share == "coverage":
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        axes.set_title(heading, fontsize=10, color=INK, loc="left")
    save_figure(figure, Path(path))


def _draw_lines(axes: Axes, rows: Rows, lines: Sequence[Line], *, smooth: bool = True) -> None:
    for line in lines:
        steps, values = series_of(rows, line.key)
        if not len(steps):
            continue
        window = max(1, len(values) // 20) if smooth else 1
        if window > 1:
            axes.plot(steps, values, color=line.color, linewidth=0.7, alpha=0.35)
        mark = "o" if len(values) <= 12 else None
        axes.plot(
            steps,
            moving_average(values, window),
            color=line.color,
            linestyle=line.stroke,
            linewidth=1.8,
            label=line.label,
            marker=mark,
            markersize=3,
        )


def _reward(axes: Axes, rows: Rows) -> None:
    steps, mean = series_of(rows, "reward/mean")
    _, spread = series_of([row for row in rows if "reward/mean" in row], "reward/std")
    if len(spread) == len(mean):
        axes.fill_between(
            steps, mean - spread, mean + spread, color=BLUE, alpha=0.13, linewidth=0, label="± 1 std"
        )
    _draw_lines(axes, rows, [Line("reward/mean", "mean", BLUE)])
    finish_axes(axes, "Reward")


def _lines_panel(
    title: str, *lines: Line, zero: bool = True, percent: bool = False, smooth: bool = True
) -> Panel:
    def draw(axes: Axes, rows: Rows) -> None:
        _draw_lines(axes, rows, lines, smooth=smooth)
        finish_axes(axes, title, zero=zero, percent=percent)

    return tuple(line.key for line in lines), draw


def component_panels(keys: Iterable[str]) -> list[Panel]:
    """What the reward is made of, by the family's own names: a panel for ``reward/NAME`` and one for each area of
    ``reward/AREA/NAME``.
    """
    areas: dict[str, list[str]] = {}
    for key in keys:
        if key.startswith("reward/") and key not in ("reward/mean", "reward/std"):
            areas.setdefault(key.rpartition("/")[0], []).append(key)
    panels = []
    for area, inside in areas.items():
        lines = [
            Line(key, key.rpartition("/")[2].replace("_", " "), colour, stroke)
            for key, (stroke, colour) in zip(inside, itertools.cycle(looks(CATEGORICAL)), strict=False)
        ]
        title = "Components of the reward" + (f": {area.split('/')[1]}" if "/" in area else "")
        panels.append(_lines_panel(title, *lines, zero=False))
    return panels


def evaluation_panels(name: str, several: Sequence[Results]) -> list[Callable[[Axes, Rows], None]]:
    """One panel for all metrics that are told to be shares, and one for each other metric."""
    by_policy = [results for results in several if results.step is not None]
    if len(by_policy) < 2:
        return []
    metrics = list(dict.fromkeys(metric for results in by_policy for metric in results.metrics))
    told = {metric for results in by_policy for metric in results.shares}
    shares = [metric for metric in metrics if metric in told]
    return [
        *([_evaluation_panel(name, by_policy, shares, percent=True)] if shares else []),
        *(_evaluation_panel(name, by_policy, [m], percent=False) for m in metrics if m not in shares),
    ]


def _evaluation_panel(
    name: str, several: Sequence[Results], metrics: Sequence[str], *, percent: bool
) -> Callable[[Axes, Rows], None]:
    def draw(axes: Axes, rows: Rows) -> None:
        del rows
        least = 0.0
        for metric, (stroke, color) in zip(metrics, itertools.cycle(looks(CATEGORICAL)), strict=False):
            there = [results for results in several if metric in results.metrics]
            steps = [float(results.step or 0) for results in there]
            values = _values(there, metric)
            lows, highs = [value.low for value in values], [value.high for value in values]
            axes.fill_between(steps, lows, highs, color=color, alpha=0.18, linewidth=0)
            means = [value.value for value in values]
            least = min(least, *(end for end in (*lows, *means) if not math.isnan(end)), 0.0)
            label = metric.replace("_", " ")
            axes.plot(
                steps,
                means,
                color=color,
                linestyle=stroke,
                linewidth=1.8,
                label=label,
                marker="o",
                markersize=3,
            )
        subject = f": {metrics[0].replace('_', ' ')}" if len(metrics) == 1 else ""
        # Wins minus losses go below 0.
        finish_axes(axes, f"Evaluation {name}{subject}, 95% intervals", percent=percent, zero=least == 0)

    return draw


def _values(several: Iterable[Results], metric: str) -> list[Value]:
    return [results.metrics[metric] for results in several if metric in results.metrics]


def _lengths(axes: Axes, rows: Rows) -> None:
    _draw_lines(axes, rows, [Line("length/mean", "mean", BLUE), Line("length/max", "longest", GREY)])
    truncated = series_of(rows, "length/truncated")[1]
    share = f", {truncated[-1]:.1%} cut off at the end of the run" if len(truncated) else ""
    finish_axes(axes, f"Caption tokens{share}", zero=True)


def _gradient(axes: Axes, rows: Rows) -> None:
    _draw_lines(axes, rows, [Line("grad_norm", "gradient norm", BLUE)])
    steps, rate = series_of(rows, "lr")
    if len(steps):
        right = axes.twinx()
        right.plot(steps, rate, color=ORANGE, linewidth=1.4)
        right.spines[["top", "left", "bottom"]].set_visible(False)
        right.spines["right"].set_color(ORANGE)
        right.tick_params(labelsize=8, colors=ORANGE)
        right.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
        right.yaxis.get_offset_text().set_fontsize(8)
        right.set_ylim(bottom=0)
    finish_axes(axes, "Gradient norm" + (" and learning rate (right)" if len(steps) else ""), zero=True)


_PHASES = (
    Line("seconds/data", "data", GREY),
    Line("seconds/rollout", "rollout", BLUE),
    Line("seconds/judge", "judge", ORANGE),
    Line("seconds/update", "update", GREEN),
    Line("seconds/step", "whole step", INK),
)


def _seconds(axes: Axes, rows: Rows) -> None:
    # Phases overlap (groups are judged while others decode), so they are lines and not a stack.
    title = "Seconds per step"
    if len(rows) > 3:
        # The first step compiles and would flatten all that follow.
        if "seconds/step" in rows[0]:
            title += f" (the first: {rows[0]['seconds/step']:.0f})"
        rows = rows[1:]
    _draw_lines(axes, rows, _PHASES)
    finish_axes(axes, title, zero=True)


_PANELS: tuple[Panel, ...] = (
    (("reward/mean",), _reward),
    _lines_panel("Loss on the captions, nats per token", Line("nll", "loss", BLUE), zero=False),
    _lines_panel(
        "Facts",
        Line("facts/coverage", "covered", BLUE),
        Line("facts/hallucination", "false claims", RED),
        Line("facts/invented_share", "of objects not there", ORANGE),
        percent=True,
    ),
    _lines_panel("KL to the reference policy", Line("kl", "kl", PURPLE)),
    (("length/mean", "length/max"), _lengths),
    _lines_panel(
        "Share of tokens clipped",
        Line("clip/low", "below", ORANGE),
        Line("clip/high", "above", BLUE),
        percent=True,
    ),
    _lines_panel(
        "Not counted",
        Line("judge/failed", "share of scores failed", RED),
        Line("groups/dropped", "groups dropped", GREY),
        smooth=False,
    ),
    (("grad_norm",), _gradient),
    (("seconds/step", "seconds/rollout", "seconds/judge", "seconds/update"), _seconds),
    _lines_panel(
        "Tokens per second",
        Line("tokens_per_s/rollout", "rollout", BLUE),
        Line("tokens_per_s/update", "update", GREEN),
    ),
)
