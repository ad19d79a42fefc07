"""Plots: drawn whatever the rows hold."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image

from vcap_jax.report.charts import finish_axes, moving_average, small_multiples
from vcap_jax.report.evaluations import Results
from vcap_jax.report.intervals import Value
from vcap_jax.report.plots import component_panels, evaluation_panels, plot_comparison, plot_run
from vcap_jax.report.summary import InventionCounts, fact_shares

ROW = {
    "reward/mean": 0.5,
    "reward/std": 0.1,
    "reward/correctness": 7.0,
    "kl": math.nan,
    "length/mean": 20,
    "length/max": 31,
    "length/truncated": 0.0,
    "judge/failed": 0.0,
    "lr": 1e-4,
    "grad_norm": math.inf,
    "seconds/step": 2.0,
    "seconds/rollout": 1.0,
}


@pytest.mark.parametrize("steps", [0, pytest.param(1, marks=pytest.mark.slow), 60])
def test_a_run_of_any_length_is_drawn(tmp_path: Path, steps: int) -> None:
    rows = [{"step": step, **ROW} for step in range(1, steps + 1)]
    if steps > 2:
        del rows[1]["reward/mean"]
    plot_run(rows, tmp_path / "plots.png", title="run")
    image = np.asarray(Image.open(tmp_path / "plots.png").convert("L"))
    assert image.std() > (1 if steps else 0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plots.png"]


@pytest.mark.slow
def test_components_of_the_reward_get_panels_by_their_area(tmp_path: Path) -> None:
    rows = [{"step": step, "reward/mean": 0.5} for step in (1, 2)]
    heights = []
    for more in ({}, {"reward/accuracy": 0.5}, {"reward/accuracy": 0.5, "reward/local/accuracy": 0.4}):
        plot_run([{**row, **more} for row in rows], tmp_path / "plots.png")
        with Image.open(tmp_path / "plots.png") as image:
            heights.append(image.size)
    # One panel, two beside each other, three in two lines.
    assert heights[0][0] < heights[1][0]
    assert heights[1][1] < heights[2][1]


@pytest.mark.slow
def test_evaluations_at_two_steps_or_more_are_drawn(tmp_path: Path) -> None:
    """A panel for the shares and one for each other metric; those without a step are no point of the curve."""

    def results(step: int | None, **metrics: float) -> Results:
        values = {
            name: Value(value=value, low=value - 0.1, high=value + 0.1, n=4, method="")
            for name, value in metrics.items()
        }
        return Results(
            evaluator="own", when=str(step), step=step, metrics=values, items=4, failed=0, shares=("said",)
        )

    rows = [{"step": step, "reward/mean": 0.5} for step in (1, 2)]
    none, start, trained = results(None, said=0.3), results(0, said=0.5), results(2, said=math.nan, words=9.0)
    sizes = []
    for several in ([], [none, start], [start, trained]):
        plot_run(rows, tmp_path / "plots.png", evaluations={"own": several})
        with Image.open(tmp_path / "plots.png") as image:
            sizes.append(image.size)
    # One panel, one, three in two lines.
    assert sizes[0] == sizes[1]
    assert sizes[2][1] > sizes[1][1]


def evaluation(step: int, shares: tuple[str, ...], **metrics: float) -> Results:
    values = {
        name: Value(value=value, low=value, high=value, n=9, method="") for name, value in metrics.items()
    }
    return Results(
        evaluator="own", when=str(step), step=step, metrics=values, items=9, failed=0, shares=shares
    )


def test_only_what_is_told_to_be_a_share_is_drawn_in_per_cent() -> None:
    """Counts per caption were percentages as long as all of them were between 0 and 1. What an earlier version has
    written tells no shares."""
    several = [
        evaluation(0, (), cut=0.25, inventions=0.9, reward=0.2),
        evaluation(9, ("cut",), cut=0.5, inventions=0.4, reward=0.7),
    ]
    drawn = []
    for draw in evaluation_panels("own", several):
        axes = Figure().add_subplot()
        draw(axes, [])
        drawn.append(
            (axes.lines[0].get_label(), isinstance(axes.yaxis.get_major_formatter(), PercentFormatter))
        )
    assert drawn == [("cut", True), ("inventions", False), ("reward", False)]


def test_many_curves_of_a_panel_are_told_apart() -> None:
    """There are six colours; the seventh curve looked as the first."""
    names = tuple(f"share {number}" for number in range(8))
    several = [evaluation(step, names, **dict.fromkeys(names, 0.5)) for step in (0, 9)]
    rows = [{"step": step, **{f"reward/{name}": 0.5 for name in names}} for step in (1, 2)]
    for draw in (*evaluation_panels("own", several), *(draw for _, draw in component_panels(rows[0]))):
        axes = Figure().add_subplot()
        draw(axes, rows)
        legend = axes.get_legend()
        assert legend is not None
        assert legend.handlelength > 2  # a dash and a gap, or a short line looks whole
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(names)


def test_an_evaluation_below_zero_is_seen() -> None:
    """Wins minus losses; the axis began at 0, and the curve was outside."""

    def score(step: int, value: float) -> Results:
        scores = {"score": Value(value=value, low=value - 3, high=value + 3, n=9, method="")}
        return Results(evaluator="arena", when=str(step), step=step, metrics=scores, items=9, failed=0)

    def ends(*values: float) -> tuple[float, float]:
        (draw,) = evaluation_panels("arena", [score(step, value) for step, value in enumerate(values)])
        axes = Figure().add_subplot()
        draw(axes, [])
        return axes.get_ylim()

    low, high = ends(-49.0, -29.0)
    assert low <= -52
    assert high >= -26
    assert ends(math.nan, -29.0)[0] <= -32
    assert ends(20.0, 30.0)[0] == 0


def test_the_comparison_is_drawn_also_without_claims(tmp_path: Path) -> None:
    some, none = np.array([4, 5, 6]), np.zeros(3, int)
    one = np.ones(3, int)
    silent = InventionCounts(some, none, none, one, none)
    first, last = (InventionCounts(some, some, some - wrong, one, none) for wrong in (1, 0))
    counted = (first, silent, last)
    summary = dict(zip(("references", "start", "trained"), map(fact_shares, counted), strict=True))
    plot_comparison(summary, tmp_path / "comparison.png")
    assert Image.open(tmp_path / "comparison.png").width > 800


def test_the_comparison_is_drawn_without_references_where_there_are_none(tmp_path: Path) -> None:
    some, one = np.array([4, 5, 6]), np.ones(3, int)
    shares = fact_shares(InventionCounts(some, some, some - 1, one, one))
    plot_comparison({"start": shares, "trained": shares}, tmp_path / "comparison.png")
    assert Image.open(tmp_path / "comparison.png").width > 800


def test_moving_average() -> None:
    values = np.array([1.0, 2.0, math.nan, 4.0, 5.0])
    np.testing.assert_allclose(moving_average(values, 3), [1.5, 1.5, 3.0, 4.5, 4.5])
    np.testing.assert_allclose(moving_average(np.full(7, 3.0), 5), 3.0)


@pytest.mark.parametrize("labels", [["a", "b"], [f"A{k}" for k in range(40)], ["reference errors"] * 6])
@pytest.mark.parametrize("stroke", ["-", "--"])
def test_a_legend_stays_between_its_title_and_its_panel(labels: list[str], stroke: str) -> None:
    figure, panels = small_multiples(2, 2, (4.4, 3.0))
    for axes in panels:
        for label in labels:
            axes.plot([0, 1], [0, 1], stroke, label=label)
        finish_axes(axes, "Reward")
    figure.draw_without_rendering()
    for axes in panels:
        legend = axes.get_legend()
        assert legend is not None
        extent, title = legend.get_window_extent(), axes._left_title.get_window_extent()
        assert extent.x1 <= axes.bbox.x1
        assert extent.y1 <= title.y0
        assert axes.bbox.width > 300
