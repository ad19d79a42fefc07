"""The things of a picture: its pieces of colour, each with the shape that it is and with what it covers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from vcap_jax.world.drawing import DOT, placed
from vcap_jax.world.image_segments import GROUND, Piece, Segments
from vcap_jax.world.scenes import IMAGE_EDGE
from vcap_jax.world.shape_fitting import WINDOW, Fit, fit_shape, looked_at
from vcap_jax.world.vocabulary import IMAGE_PLACES

_LARGE = 26.5
"""Extent halfway between small and large."""
_STRANGE = 0.3
"""Cost of a fit, relative to the area of the piece, above which a thing has no shape of this world."""
_COMPLETE = 0.02
"""The same, below which nothing hides any of it."""
_AS_COMPLETE = 0.03
"""Of two things that touch, one whose cost is greater than the other's by this much does not lie in front."""
_GOES_ON = 0.12
"""What a pixel costs where a shape is taken to go on behind something else."""
_TOUCH = 4
"""Pixels of one piece beside another that make them touch."""
_NEAR = 2
"""Pixels by which the centre of a thing may lie off the middle of its box, at most."""
_FAR = 10
"""The same for one that is partly hidden."""


@dataclass(frozen=True)
class Thing:
    """A piece with the shape that it is.

    index: of the piece. before: the pieces that touch it and may hide part of it. inside: the colour of the dot in it.
    """

    index: int
    piece: Piece
    fit: Fit
    before: frozenset[int]
    inside: str | None = None

    @property
    def place(self) -> str:
        """The ninth that its centre lies in."""
        column, row = (min(max(int(3 * c / IMAGE_EDGE), 0), 2) for c in self.fit.centre)
        return IMAGE_PLACES[3 * row + column]

    @property
    def size(self) -> str:
        return "large" if self.fit.extent > _LARGE else "small"

    @property
    def strange(self) -> bool:
        """Whether it is none of the shapes of this world."""
        return self.fit.cost > _STRANGE * self.piece.area


def find_things(segments: Segments) -> list[Thing]:
    """The things of a picture; a dot inside a ring is told with its ring.

    First its pieces are fitted as if each were whole, then those that are not, going on behind others."""
    fits = [_fit(segments, index, frozenset()) for index in range(len(segments.pieces))]
    costs = [fit.cost / max(piece.area, 1) for fit, piece in zip(fits, segments.pieces, strict=True)]
    things = []
    for index, beside in enumerate(_touching(segments)):
        before = frozenset(other for other in beside if costs[other] < costs[index] + _AS_COMPLETE)
        partly = bool(before) and costs[index] > _COMPLETE
        fit = _fit(segments, index, before) if partly else _centred(fits[index], segments, index)
        things.append(Thing(index=index, piece=segments.pieces[index], fit=fit, before=before))
    return _with_dots(things)


def covers(things: list[Thing], segments: Segments) -> Mapping[tuple[int, int], float]:
    """Share of the area of the thing behind that the one in front hides, by their indices (front, back)."""
    found: dict[tuple[int, int], float] = {}
    touching = _touching(segments)
    masks: dict[int, np.ndarray] = {}
    for number, one in enumerate(things):
        for other in things[number + 1 :]:
            if other.index not in touching[one.index]:
                continue
            for thing in (one, other):
                if thing.index not in masks:
                    masks[thing.index] = _mask(thing.fit)
            both = segments.owner[masks[one.index] & masks[other.index]]
            first, second = np.count_nonzero(both == one.index), np.count_nonzero(both == other.index)
            if first or second:
                front, back = (one, other) if first >= second else (other, one)
                hidden = np.count_nonzero(segments.owner[masks[back.index]] == front.index)
                found[front.index, back.index] = hidden / max(back.fit.area, 1)
    return found


def _fit(segments: Segments, index: int, before: frozenset[int]) -> Fit:
    """The shape of a piece, which goes on behind others where that is likely."""
    reach = _FAR if before else _NEAR
    rows, columns = segments.pieces[index].box
    middle = ((columns.start + columns.stop) // 2, (rows.start + rows.stop) // 2)
    edge = looked_at(reach)
    top, left = middle[1] - edge // 2, middle[0] - edge // 2
    owner = _cut(segments.owner, top, left, edge, GROUND)
    coverage = _cut(segments.coverage, top, left, edge, 0)
    clear = _cut(segments.clear, top, left, edge, True)
    weights = np.ones(len(segments.pieces) + 2, np.float32)
    weights[list(before)] = _GOES_ON
    seen = np.where(owner == index, coverage, np.float32(0))
    return fit_shape(seen, weights[owner] * clear, middle, reach, thorough=bool(before))


def _touching(segments: Segments) -> list[set[int]]:
    """For each piece the pieces beside it."""
    count = len(segments.pieces)
    beside: list[set[int]] = [set() for _ in range(count)]
    owner = segments.owner
    contacts = np.zeros(count * count, int)
    # Between two colours there may be a pixel or two of a third, even of the background's.
    for gap in (1, 3):
        for one, other in ((owner[gap:], owner[:-gap]), (owner[:, gap:], owner[:, :-gap])):
            meet = (one != other) & (one >= 0) & (other >= 0)
            contacts += np.bincount(one[meet].astype(int) * count + other[meet], minlength=count * count)
    pairs = contacts.reshape(count, count)
    for one, other in zip(*np.nonzero(pairs + pairs.T >= _TOUCH), strict=True):
        beside[one].add(int(other))
    return beside


def _with_dots(things: list[Thing]) -> list[Thing]:
    """The things without the dots in rings, which are told with their ring."""
    rings = {thing.index: thing for thing in things if thing.fit.shape == "ring" and thing.size == "large"}
    dots: set[int] = set()
    for index, ring in rings.items():
        for thing in things:
            rows, columns = thing.piece.box
            x, y = (columns.start + columns.stop) / 2, (rows.start + rows.stop) / 2
            widest = max(columns.stop - columns.start, rows.stop - rows.start)
            near = math.hypot(x - ring.fit.centre[0], y - ring.fit.centre[1]) < 3.5
            if near and widest < 1.5 * DOT * ring.fit.extent:
                rings[index] = replace(ring, inside=thing.piece.colour)
                dots.add(thing.index)
    return [rings.get(thing.index, thing) for thing in things if thing.index not in dots]


def _centred(fit: Fit, segments: Segments, index: int) -> Fit:
    """The fit of a whole thing, moved by the part of a pixel by which its centre of mass lies elsewhere."""
    owner = _cut(segments.owner, fit.top, fit.left, WINDOW, GROUND)
    seen = np.where(owner == index, _cut(segments.coverage, fit.top, fit.left, WINDOW, 0), 0)
    middles = np.arange(WINDOW)
    (x, y), (seen_x, seen_y) = (
        (float(mask.sum(axis=0) @ middles) / total, float(mask.sum(axis=1) @ middles) / total)
        for mask in (fit.coverage, seen)
        for total in [float(mask.sum()) + 1e-6]
    )
    dx, dy = (min(max(way, -0.75), 0.75) for way in (seen_x - x, seen_y - y))
    return replace(fit, centre=(fit.centre[0] + dx, fit.centre[1] + dy))


def _cut(pixels: np.ndarray, top: int, left: int, edge: int, beyond: int) -> np.ndarray:
    """A square cut out of a picture; what reaches beyond the picture is ``beyond``."""
    cut = np.full((edge, edge), beyond, pixels.dtype)
    rows = slice(max(top, 0), min(top + edge, IMAGE_EDGE))
    columns = slice(max(left, 0), min(left + edge, IMAGE_EDGE))
    cut[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left] = pixels[
        rows, columns
    ]
    return cut


def _mask(fit: Fit) -> np.ndarray:
    """Where a fit covers half of a pixel, bool [128, 128]."""
    return placed((fit.top, fit.left, fit.coverage), IMAGE_EDGE) >= 0.5
