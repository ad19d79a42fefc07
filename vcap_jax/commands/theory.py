"""Draws the landscape of the witness-adjudicator reward, and checks it by drawing references at random.

    python launch/theory.py                                    # theory.png and a table
    python launch/theory.py --facts 40 --references 1 5 20 --out landscape.png

The reward of a caption is taken as 0.05 * 10 * P_coll + 0.04 * 10 * P_recall, the paper's weights on full scores of
the two tests. No accelerator and no JAX are needed.
"""

from __future__ import annotations

import itertools
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure

from vcap_jax.report.charts import looks
from vcap_jax.run.command_line import command_parser, guarded, seed_argument
from vcap_jax.studies import theory

CORRECTNESS, COMPLETENESS = 0.5, 0.4
"""The paper's weights of a full score."""
SIZES = (1, 3, 6, 12)
"""Of the reference, where none are given and the picture has as many facts."""
LEVELS = np.linspace(0, CORRECTNESS + COMPLETENESS, 19)
COLOURS = ("#4c78a8", "#54a24b", "#eeca3b", "#f58518", "#e45756", "#b279a2")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--facts", type=int, default=24, metavar="N", help="facts of the picture (default: 24)"
    )
    parser.add_argument(
        "--references",
        type=int,
        nargs="+",
        metavar="m",
        help=f"sizes of the reference (default: those of {', '.join(map(str, SIZES))} that are at most N)",
    )
    parser.add_argument("--draws", type=int, default=100_000, help="random draws per row of the table")
    parser.add_argument("--seed", type=seed_argument, default=0, help="of the draws (default: 0)")
    parser.add_argument(
        "--out", type=_picture, default=Path("theory.png"), help="the picture (default: theory.png)"
    )
    args = parser.parse_args(arguments)
    sizes = args.references or [m for m in SIZES if m <= args.facts] or list(SIZES[:1])

    def show() -> None:
        print(table(args.facts, sizes, draws=args.draws, seed=args.seed))
        figure = draw(args.facts, sizes)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out, dpi=110, bbox_inches="tight")
        print(f"drawn to {args.out}")

    return guarded(show, goes_on=False)


def _picture(text: str) -> Path:
    """Of a file whose ending says in which format it is drawn."""
    path, known = Path(text), FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ArgumentTypeError(f"{path}: end it in one of {', '.join(f'.{one}' for one in sorted(known))}")
    return path


def table(N: int, sizes: Sequence[int], *, draws: int, seed: int) -> str:
    """Both probabilities at a few points, exactly and as drawn, with the slopes of their logarithms and their own."""
    rows = [
        f"N = {N}; 'drawn' is the share of {draws} random references and captions",
        (
            f"{'m':>4} {'c':>4} {'n-c':>4}   {'P_recall':>9} {'drawn':>8}   {'P_coll':>9} {'drawn':>8}   "
            f"{'dP_recall/dc':>12} {'dP_coll/dn':>11} {'dlog/dc':>8} {'dlog/dn':>8}"
        ),
    ]
    for m in sizes:
        for c, errors in ((N // 2, N // 4), (N - N // 4, N // 8), (N - 1, 1), (N, 0)):
            first = theory.recall(c, m=m, N=N)
            second = theory.collision_free(c + errors, c, m=m, N=N)
            drawn = theory.simulate(c + errors, c, m=m, N=N, draws=draws, seed=seed)
            by_c, by_n = first.log_gradient, second.log_gradient
            slopes = ["-" if by_c is None else f"{by_c.c:.3f}", "-" if by_n is None else f"{by_n.n:.3f}"]
            rows.append(
                f"{m:>4} {c:>4} {errors:>4}   {first.p:>9.5f} {drawn.recall:>8.5f}   {second.p:>9.5f} "
                f"{drawn.collision_free:>8.5f}   {first.gradient.c:>12.5f} {second.gradient.n:>11.5f} "
                f"{slopes[0]:>8} {slopes[1]:>8}"
            )
    return "\n".join(rows)


def draw(N: int, sizes: Sequence[int]) -> Figure:
    """A row of landscapes over (c, n - c), one for each m, above the two factors and their slopes."""
    for m in sizes:
        theory.recall(0, m=m, N=N)  # refuses what lies outside the model before anything is drawn
    columns = max(len(sizes), 3)
    figure = Figure(figsize=(3.5 * columns + 0.8, 7.4), layout="constrained")
    upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=(1.1, 1)))
    axes = upper.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axis, m in zip(axes, sizes, strict=True):
        picture = _landscape(axis, N, m)
    axes[0].set_ylabel("errors, n - c")
    upper.colorbar(picture, ax=axes, label="0.5 P_coll + 0.4 P_recall", ticks=np.arange(0, 0.91, 0.1))
    upper.suptitle(
        f"Reward of a caption with c correct facts and n - c errors, N = {N}: star: the maximum; dotted: c = m"
    )
    _curves(lower.subplots(1, 3), N, sizes)
    return figure


def _landscape(axis: Axes, N: int, m: int) -> QuadContourSet:
    c, errors = np.meshgrid(np.linspace(0, N, 241), np.linspace(0, N, 241))
    reward = CORRECTNESS * _avoided(errors, m, N) + COMPLETENESS * _avoided(N - c, m, N)
    picture = axis.contourf(c, errors, reward, levels=LEVELS, cmap="viridis")
    axis.contour(c, errors, reward, levels=LEVELS[2::2], colors="white", linewidths=0.4, alpha=0.6)
    best = np.unravel_index(int(reward.argmax()), reward.shape)
    star, edge = (c[best], errors[best], "*"), "white"
    axis.plot(*star, color="red", markersize=13, markeredgecolor=edge, clip_on=False, zorder=5)
    axis.axvline(m, color="white", linestyle=":", linewidth=1)
    axis.set(xlabel="correct facts, c", title=f"m = {m}", xlim=(0, N), ylim=(0, N))
    return picture


def _curves(axes: Sequence[Axes], N: int, sizes: Sequence[int]) -> None:
    x = np.linspace(0, N, 481)
    for m, (stroke, colour) in zip(sizes, itertools.cycle(looks(COLOURS)), strict=False):
        whole = range(m, N + 1)
        slopes = [theory.recall(c, m=m, N=N).log_gradient for c in whole]
        for axis, along, values, mark in (
            (axes[0], x, _avoided(N - x, m, N), ""),
            (axes[1], x, _avoided(x, m, N), ""),
            (axes[2], whole, [slope.c for slope in slopes if slope is not None], "."),
        ):
            axis.plot(along, values, color=colour, linestyle=stroke, marker=mark, label=f"m = {m}")
    axes[0].set(xlabel="correct facts, c", title="P_recall: 0 below c = m, 1 at c = N")
    axes[1].set(xlabel="errors, n - c", title="P_coll: 1 without errors")
    axes[2].set(xlabel="correct facts, c", title="Slope of log P_recall by c: steeper with m", yscale="log")
    for axis in axes:
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)


def _avoided(facts: np.ndarray, m: int, N: int) -> np.ndarray:
    """The chance that a reference has none of so many facts: P_coll of a caption's errors, P_recall of what it omits.
    Between c = m - 1 and m the extension of P_recall already rises from 0; the model itself is 0 below m."""
    return np.exp(theory.log_avoid(facts, m, N))
