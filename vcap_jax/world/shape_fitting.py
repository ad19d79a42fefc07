"""Which shape a piece of a picture is: known outlines, drawn and compared with the pixels that are not hidden.

The cost of a fit is the weighted sum of squares of what the outline covers and the piece does not, or the other way
round. Pixels that belong to something in front cost little where the outline covers them: the shape may go on there.
First all shapes are compared at half resolution, then the best of them in detail.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view as _sliding

from vcap_jax.world.drawing import shape_mask
from vcap_jax.world.vocabulary import DIRECTED, DIRECTIONS, SHAPES

KINDS: tuple[tuple[str, str | None], ...] = tuple(
    (shape, direction) for shape in SHAPES for direction in (DIRECTIONS if shape in DIRECTED else (None,))
)
"""Shapes with their directions."""
WINDOW = 44
"""Edge of a window that holds an outline, in pixels."""
_COARSE_EXTENTS = (17.5, 19.5, 33.0, 35.0, 37.0)
_FINE_EXTENTS = (17.0, 18.0, 19.0, 20.0, 21.0, 32.0, 33.0, 34.0, 35.0, 36.0, 37.0, 38.0)
_FINE_TILTS = (-0.075, 0.0, 0.075)
_FINE_ABOUT = tuple(
    (
        next(i for i, fine in enumerate(_FINE_EXTENTS) if fine > coarse - 1.6),
        max(i for i, fine in enumerate(_FINE_EXTENTS) if fine < coarse + 1.6) + 1,
    )
    for coarse in _COARSE_EXTENTS
)
"""First and last (exclusive) of the extents about each coarse one."""
_REFINED = 4
"""Kinds that are compared in detail, at most."""
_THOROUGH = 3
"""Places and extents of a kind that are compared in detail where only a part is seen."""
_ALONE = 2**18
"""Multiplications of a product that one thread does."""
_CLOSE = 0.12
"""Kinds whose cost at half resolution is greater than the least by this share of what is seen are left out."""
_REACH = 1
"""Pixels by which a fit is moved to and fro in detail."""


@dataclass(frozen=True)
class Fit:
    """A shape in its place.

    shape, direction, extent, tilt, centre: as of an object, centre in the pixels of the picture.
    cost: of the fit, in pixels. coverage: by the outline, float32 [44, 44], its first pixel at row top, column left.
    """

    shape: str
    direction: str | None
    extent: float
    tilt: float
    centre: tuple[float, float]
    cost: float
    top: int
    left: int
    coverage: np.ndarray

    @property
    def area(self) -> float:
        """Pixels of the whole shape, as if nothing hid it."""
        return float(self.coverage.sum())


@cache
def _fine() -> tuple[np.ndarray, np.ndarray]:
    """Outlines [kinds, extents, tilts, 44, 44], and the same with their squares as rows [kinds, n, 2 * 44 * 44]."""
    middle = (WINDOW / 2, WINDOW / 2)
    outlines = np.array(
        [
            [
                [shape_mask(shape, middle, extent, tilt, WINDOW, direction) for tilt in _FINE_TILTS]
                for extent in _FINE_EXTENTS
            ]
            for shape, direction in KINDS
        ]
    )
    return outlines, _with_squares(outlines.reshape(len(KINDS), -1, WINDOW * WINDOW))


@cache
def _coarse() -> np.ndarray:
    """Outlines of all kinds and of a few extents at half resolution, with their squares: [n, 2 * 22 * 22]."""
    middle = (WINDOW / 2, WINDOW / 2)
    outlines = np.array(
        [
            _halved(shape_mask(shape, middle, extent, 0.0, WINDOW, direction))
            for shape, direction in KINDS
            for extent in _COARSE_EXTENTS
        ]
    )
    return _with_squares(outlines.reshape(len(outlines), -1))


def _with_squares(outlines: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.concatenate([outlines, np.square(outlines)], axis=-1))


def _halved(pixels: np.ndarray) -> np.ndarray:
    """Means of squares of four pixels, [..., h, w] -> [..., h / 2, w / 2]."""
    top, bottom = pixels[..., ::2, :], pixels[..., 1::2, :]
    return (top[..., ::2] + top[..., 1::2] + bottom[..., ::2] + bottom[..., 1::2]) / 4


def fit_shape(
    seen: np.ndarray, price: np.ndarray, centre: tuple[int, int], reach: int, thorough: bool = False
) -> Fit:
    """The shape that fits a piece of a picture best.

    seen: how much of each pixel the piece fills; price: what it costs if an outline and the piece differ there: float32
    [n, n] each, n = ``looked_at(reach)``. centre: (column, row) of the picture in the middle of both. reach: pixels by
    which the shape's centre may lie elsewhere, even. thorough: compare more of what is likely at half resolution in
    detail: for what is partly hidden.
    """
    top, left = centre[1] - len(seen) // 2, centre[0] - len(seen) // 2
    # A wrong pixel costs price * (outline - seen)^2 = price * seen^2 + outline * linear + outline^2 * price.
    linear = -2 * price * seen
    least = -0.5 * float(linear.ravel() @ seen.ravel())
    places, starts = _places(linear, price, reach)
    costs = _products(places, _coarse()).reshape(len(starts), len(KINDS), len(_COARSE_EXTENTS))
    by_kind = costs.min(axis=(0, 2))
    order = np.argsort(by_kind)[:_REFINED].tolist()
    enough = by_kind[order[0]] + _CLOSE * (float(price.ravel() @ seen.ravel()) + 1)
    best: tuple[float, int, int, int, int] | None = None
    windows: dict[tuple[int, int], np.ndarray] = {}
    for kind in order:
        if by_kind[kind] > enough:
            break
        likely = np.argsort(costs[:, kind].ravel())[: _THOROUGH if thorough else 1]
        for place, extent in zip(*np.unravel_index(likely, costs[:, kind].shape), strict=True):
            start = starts[int(place)]
            if start not in windows:
                windows[start] = _windows(linear, price, start)
            found = _refined(windows[start], kind, start, int(extent))
            if best is None or found < best:
                best = found
    assert best is not None
    cost, kind, template, row, column = best
    extent, tilt = divmod(template, len(_FINE_TILTS))
    shape, direction = KINDS[kind]
    return Fit(
        shape=shape,
        direction=direction,
        extent=_FINE_EXTENTS[extent],
        tilt=_FINE_TILTS[tilt],
        centre=(left + column + WINDOW / 2, top + row + WINDOW / 2),
        cost=cost + least,
        top=top + row,
        left=left + column,
        coverage=_fine()[0][kind, extent, tilt],
    )


def looked_at(reach: int) -> int:
    """Edge of the square of a picture that ``fit_shape`` takes to find a shape within ``reach`` pixels."""
    return WINDOW + 2 * (reach + _REACH)


def _places(linear: np.ndarray, price: np.ndarray, reach: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Windows at half resolution [places, 2 * 22 * 22] in steps of two pixels, and the row and column of each."""
    half = [4 * _halved(pixels[_REACH:-_REACH, _REACH:-_REACH]) for pixels in (linear, price)]
    steps, edge = reach + 1, WINDOW // 2
    windows = [_sliding(pixels, (edge, edge)) for pixels in half]
    places = np.concatenate([window.reshape(steps * steps, edge * edge) for window in windows], axis=1)
    starts = [(_REACH + 2 * row, _REACH + 2 * column) for row in range(steps) for column in range(steps)]
    return places, starts


def _products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Products of all rows [n, k] with all rows [m, k]: [n, m].

    A few rows at a time: larger products are shared among threads (by OpenBLAS from 2 ** 18 multiplications on), which
    on a busy machine wait for each other for longer than they work.
    """
    rows = max(_ALONE // other.size, 1)
    return np.concatenate([one[first : first + rows] @ other.T for first in range(0, len(one), rows)])


def _windows(linear: np.ndarray, price: np.ndarray, start: tuple[int, int]) -> np.ndarray:
    """Windows about a place, out to ``_REACH`` pixels: [places, 2 * 44 * 44]."""
    rows, columns = (slice(first - _REACH, first + _REACH + WINDOW) for first in start)
    near = [_sliding(pixels[rows, columns], (WINDOW, WINDOW)) for pixels in (linear, price)]
    return np.stack(near, axis=2).reshape((2 * _REACH + 1) ** 2, -1)


def _refined(
    windows: np.ndarray, kind: int, start: tuple[int, int], extent: int
) -> tuple[float, int, int, int, int]:
    """Least cost (without what does not depend on the fit), kind, template, row and column of its window.

    start: row and column of the window in the middle. extent: index of the coarse one.
    """
    steps, tilts = 2 * _REACH + 1, len(_FINE_TILTS)
    first, last = _FINE_ABOUT[extent]
    costs = _products(_fine()[1][kind, first * tilts : last * tilts], windows)
    template, place = divmod(int(costs.argmin()), steps * steps)
    row, column = divmod(place, steps)
    return (
        float(costs[template, place]),
        kind,
        first * tilts + template,
        start[0] - _REACH + row,
        start[1] - _REACH + column,
    )
