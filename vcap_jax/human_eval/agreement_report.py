"""The paper's table and figure of human evaluation: one HTML page without other files, JSON, and the figure alone."""

from __future__ import annotations

import io
import math
from pathlib import Path

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vcap_jax.human_eval.protocol import Kind, Ranking
from vcap_jax.human_eval.results import LABELS, ModelRow, Results
from vcap_jax.human_eval.reward_agreement import ANNOTATORS, OVERALL, TIES
from vcap_jax.report.intervals import Value
from vcap_jax.report.pages import page_templates, write_page
from vcap_jax.report.summary import write_summary
from vcap_jax.system.files import replace_file

HALF_WIDTHS = (0.05, 0.03, 0.02)
_PEOPLE, _REWARD = "#2463a6", "#e07b39"
_SHORT, _LETTER = 14, 0.09
"""Letters of a model's name for which the figure has room, and inches of each further one."""


def write_agreement(results: Results, folder: Path, *, name: str) -> list[Path]:
    """Writes agreement.html, agreement.json, agreement.svg and agreement.png; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"agreement.{suffix}" for suffix in ("html", "json", "svg", "png")]
    drawn = draw(results)
    svg, png = io.BytesIO(), io.BytesIO()
    # Without a date and with fixed names, so that the same results give the same file.
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": "vcap", "svg.fonttype": "none"}):
        drawn.savefig(svg, format="svg", metadata=about)
    drawn.savefig(png, format="png", dpi=140)
    picture = svg.getvalue().decode()
    templates = page_templates("vcap_jax.human_eval")
    templates.filters.update(number=number, percent=percent, alone=alone)
    templates.globals.update(overall=OVERALL)
    write_page(
        paths[0],
        templates,
        "agreement.html",
        name=name,
        results=results,
        # Made here, of escaped text; what stands before the element is for files of its own.
        picture=Markup(picture[picture.index("<svg") :]),
        kinds=list(Kind),
        rankings=list(Ranking),
        ties=TIES,
        labels=LABELS,
        half_widths=HALF_WIDTHS,
        people=ANNOTATORS,
        best=min((rank for row in results.rows if (rank := row.mean_rank[OVERALL].value) > 0), default=None),
    )
    write_summary(paths[1], {"study": name, **vars(results), "sample_sizes": sample_sizes(results)})
    replace_file(paths[2], svg.getvalue())
    replace_file(paths[3], png.getvalue())
    return paths


def sample_sizes(results: Results) -> list[dict[str, float]]:
    """Items that the mean agreement with the reward needs, by how many annotators rank each and by half width of the
    interval; of the mean of all pairs by overall ranks, ties counted. What cannot be told is left out."""
    return [
        {"half_width": width, "annotators": people, "items": spread.items_for(width)}
        for width in HALF_WIDTHS
        for people, spread in results.spreads.items()
    ]


def draw(results: Results) -> Figure:
    """Left, mean ranks by people and under the reward; right, on which share of items both order two models alike."""
    paired = bool(results.pairs)
    count, beside = len(results.rows), 2 if paired else 1
    # Long names stand beside the axes, and aslant below them: else these would have no room, nor would the title.
    more = _LETTER * max(0, max((len(row.model) for row in results.rows), default=0) - _SHORT)
    size = ((10.5 if paired else 5.6) + beside * more, 1.5 + 0.55 * max(count, 4) + more / 2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, beside, squeeze=False, width_ratios=(1, 1.15) if paired else None)[0]
    _draw_ranks(axes[0], results.rows)
    if paired:
        _draw_pairs(axes[1], results)
    return figure


def _draw_ranks(axis: Axes, rows: tuple[ModelRow, ...]) -> None:
    under = [row.reward_rank for row in rows if row.reward_rank is not None]
    both = len(under) == len(rows)
    series = [("people", _PEOPLE, [row.mean_rank[OVERALL] for row in rows], -0.12 if both else 0.0)]
    if both:
        series.append(("reward", _REWARD, under, 0.12))
    for label, colour, values, offset in series:
        places = [place + offset for place in range(len(rows))]
        centres = [one.value for one in values]
        errors = [[one.value - one.low for one in values], [one.high - one.value for one in values]]
        axis.errorbar(
            centres, places, xerr=errors, fmt="o", color=colour, capsize=3, label=label, markersize=6
        )
    axis.set_yticks(range(len(rows)), [row.model for row in rows], parse_math=False)
    axis.set(xlabel="mean rank, 1 the best", xlim=(0.8, len(rows) + 0.2), ylim=(len(rows) - 0.5, -0.5))
    axis.grid(axis="x", alpha=0.3)
    axis.legend(frameon=False, loc="best")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_pairs(axis: Axes, results: Results) -> None:
    models = [row.model for row in results.rows]
    place = {model: index for index, model in enumerate(models)}
    grid = [[math.nan] * len(models) for _ in models]
    for pair in results.pairs[OVERALL]:
        value = 100 * pair.agreement["counted"].value
        a, b = place[pair.first], place[pair.second]
        grid[a][b] = grid[b][a] = value
    axis.imshow(grid, cmap="RdBu", vmin=0, vmax=100, alpha=0.75)
    for a, row in enumerate(grid):
        for b, value in enumerate(row):
            if not math.isnan(value):
                ink = "white" if abs(value - 50) > 38 else "black"
                axis.text(b, a, f"{value:.1f}", ha="center", va="center", fontsize=10, color=ink)
    axis.set_xticks(range(len(models)), models, rotation=25, ha="right", parse_math=False)
    axis.set_yticks(range(len(models)), models, parse_math=False)
    mean = results.mean_pairs[OVERALL]["counted"]
    told = "" if math.isnan(mean.value) else f"; mean {100 * mean.value:.1f}"
    axis.set_title(f"items on which people and reward agree, %{told}", fontsize=10)
    axis.spines[:].set_visible(False)


def number(value: Value | None, digits: int = 2, *, unit: str = "", of: float = 1) -> str:
    """ "2.27 (2.10 to 2.44)"; a dash where nothing was measured. unit: behind the value, which is told ``of`` times."""
    if value is None or math.isnan(value.value):
        return "–"
    shown, low, high = (f"{of * part:.{digits}f}" for part in (value.value, value.low, value.high))
    return f"{shown}{unit} ({low} to {high})"


def alone(value: float) -> str:
    """A number of two digits that has no interval; a dash where nothing was measured."""
    return "–" if math.isnan(value) else f"{value:.2g}"


def percent(value: Value | None) -> str:
    """ "61.1% (58.0 to 64.2)"; a dash where nothing was measured."""
    return number(value, 1, unit="%", of=100)
