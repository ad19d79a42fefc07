"""Reads the facts of a picture out of its pixels: the adjudicator's eyes for images.

A picture is taken apart into pieces of one colour (``image_segments``), each of which is fitted with a shape that may
go on behind the pieces in front of it (``image_things``). Places, levels, sides and what covers what follow from the
fits; what a large thing bears from what is seen inside it: its pattern by the second tone, its mark by the ink. Nothing
else is used, so that PNG and JPEG are read alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np

from vcap_jax.world import vocabulary as words
from vcap_jax.world.drawing import GLYPH, glyph_centre, glyph_mask, ink, pattern_mask
from vcap_jax.world.image_facts import (
    COVERS,
    DETAIL_HIDDEN,
    LEVEL,
    MARKED_SHAPES,
    SHAPE_HIDDEN,
    SHAPE_KINDS,
    TOUCHES,
    UNEVEN,
    counts,
)
from vcap_jax.world.image_segments import Segments, segment
from vcap_jax.world.image_things import Thing, covers, find_things
from vcap_jax.world.shape_fitting import WINDOW, Fit
from vcap_jax.world.sight import Notes, Sight

_PATTERNED = 0.12
"""Share of the second tone in a pattern, at least."""
_FULL = 0.85
"""Coverage from which on a pixel is no blend."""
_LEAST_INSIDE = 30
"""Pixels inside a thing that it takes to tell its pattern."""
_INKED = 22.0
"""Pixels of ink in a mark, at least."""
_FAINT = 0.25
"""Less ink than this in a pixel is none."""
_WOBBLE = 1
"""Pixels by which a pattern may lie off the centre of the fit."""
_TILTS = (-0.07, 0.0, 0.07)
_SHIFTS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
_MARGIN = 2
"""Pixels around a glyph's box in which it is looked for."""
_BOX = (math.ceil(GLYPH[1]) + 1, math.ceil(GLYPH[0]) + 1)
"""Rows and columns of whole pixels that hold a glyph's box wherever it lies."""


def see_image(picture: np.ndarray) -> Sight:
    """Reads a picture, uint8 [H, W, 3] of any size, as an image scene.

    Raises ValueError for anything that is not such an array.
    """
    segments = segment(picture)
    things = find_things(segments)
    hiding = covers(things, segments)
    notes = Notes(facts={words.BACKGROUND: segments.background})
    notes.add(words.LIGHT, segments.light)
    by_place: dict[str, Thing] = {}
    for thing in things:
        by_place.setdefault(thing.place, thing)
    for place, thing in by_place.items():
        hidden = sum(share for (_, back), share in hiding.items() if back == thing.index)
        notes.prominence[(place,)] = float(thing.piece.area)
        _describe(notes, thing, place, hidden, segments)
    _relate(notes, by_place, hiding)
    told = notes.facts.keys() - notes.unknown
    shapes = [notes.facts[place, "shape"] for place in by_place if (place, "shape") in told]
    if len(shapes) < len(by_place):
        notes.unknown |= {("scene", shape, "count") for shape in words.SHAPES}
    else:
        notes.facts |= counts(shapes)
    notes.facts[words.OBJECTS] = words.NUMBERS[len(by_place)]
    return notes.sight()


def _describe(notes: Notes, thing: Thing, place: str, hidden: float, segments: Segments) -> None:
    """Notes what is to be said of one object alone; hidden: share of it that others hide."""
    facts, unknown = notes.facts, notes.unknown
    if thing.strange:
        unknown |= {(place, kind) for kind in words.IMAGE_ATTRIBUTES}
        return
    facts[place, "colour"] = thing.piece.colour
    facts[place, "shape"] = thing.fit.shape
    facts[place, "size"] = thing.size
    if thing.fit.direction is not None:
        facts[place, "direction"] = thing.fit.direction
    if thing.inside is not None:
        facts[place, "inside"] = thing.inside
    if hidden >= SHAPE_HIDDEN:
        unknown |= {(place, kind) for kind in SHAPE_KINDS}
    if thing.size == "small":
        return
    pattern = see_pattern(thing, segments)
    if pattern is not None:
        facts[place, "pattern"] = pattern
    if thing.fit.shape in MARKED_SHAPES:
        if mark_is_hidden(thing, segments):
            unknown.add((place, "mark"))
        elif pattern is None and (mark := see_mark(thing, segments)) is not None:
            facts[place, "mark"] = mark


def _relate(notes: Notes, by_place: Mapping[str, Thing], hiding: Mapping[tuple[int, int], float]) -> None:
    """Notes what is to be said of two objects."""
    facts, unknown = notes.facts, notes.unknown
    margin = (UNEVEN - LEVEL) / 4
    for kind, pairs, axis, (more, less) in words.NEIGHBOURS:
        for one, other in pairs:
            if one not in by_place or other not in by_place:
                continue
            slot = (one, other, kind)
            difference = by_place[other].fit.centre[axis] - by_place[one].fit.centre[axis]
            if {(one, "shape"), (other, "shape")} - (facts.keys() - unknown):
                unknown.add(slot)
            elif abs(difference) > UNEVEN - margin:
                facts[slot] = more if difference > 0 else less
            elif abs(difference) > LEVEL + margin:
                unknown.add(slot)
    places = {thing.index: place for place, thing in by_place.items()}
    for (front, back), share in hiding.items():
        if front in places and back in places and share >= (TOUCHES + COVERS) / 2:
            facts[places[front], places[back], "overlap"] = "covers"


def see_pattern(thing: Thing, segments: Segments) -> str | None:
    """The pattern of a large thing; None if it has none."""
    fit = thing.fit
    top, left = max(fit.top, 0), max(fit.left, 0)
    rows, columns = slice(top, fit.top + WINDOW), slice(left, fit.left + WINDOW)
    owner = segments.owner[rows, columns]
    outline = _inner(fit.coverage)[top - fit.top :, left - fit.left :][: owner.shape[0], : owner.shape[1]]
    inside = (owner == thing.index) & outline & (segments.coverage[rows, columns] > _FULL)
    if fit.shape in MARKED_SHAPES:
        glyph_rows, glyph_columns = _glyph_window(fit, _MARGIN)
        inside[
            max(glyph_rows.start - top, 0) : max(glyph_rows.stop - top, 0),
            max(glyph_columns.start - left, 0) : max(glyph_columns.stop - left, 0),
        ] = False
    where = np.nonzero(inside)
    shown = segments.tone[rows, columns][where]
    if len(shown) < _LEAST_INSIDE or np.count_nonzero(shown > 0.5) < _PATTERNED * len(shown):
        return None
    known = _known_patterns()[:, :, top - fit.top + where[0], left - fit.left + where[1]]
    known = known - known.mean(axis=-1, keepdims=True)
    likeness = _likeness(known, shown - shown.mean())
    return words.PATTERNS[int(likeness.max(axis=1).argmax())]


def _inner(coverage: np.ndarray) -> np.ndarray:
    """Where a shape fills a pixel and those beside it: at an edge before a dark ground any colour turns dark."""
    full = coverage > 0.9
    inner = full.copy()
    inner[1:-1, 1:-1] &= full[:-2, 1:-1] & full[2:, 1:-1] & full[1:-1, :-2] & full[1:-1, 2:]
    return inner


@cache
def _known_patterns() -> np.ndarray:
    """Each pattern in a few tilts and places about the middle of a window: float32 [3, n, 44, 44]."""
    middle = WINDOW / 2
    steps = range(-_WOBBLE, _WOBBLE + 1)
    return np.array(
        [
            [
                pattern_mask(pattern, (middle + right, middle + down), tilt, WINDOW)
                for tilt in _TILTS
                for down in steps
                for right in steps
            ]
            for pattern in words.PATTERNS
        ],
        np.float32,
    )


def mark_is_hidden(thing: Thing, segments: Segments) -> bool:
    """Whether others hide so much of the middle of a large thing that a mark in it could not be told."""
    box = segments.owner[_glyph_window(thing.fit, 0)]
    return int(np.count_nonzero((box != thing.index) & (box >= 0))) >= DETAIL_HIDDEN * box.size


def see_mark(thing: Thing, segments: Segments) -> str | None:
    """The mark of a large thing without pattern; None if it has none."""
    window = _glyph_window(thing.fit, _MARGIN)
    base = np.array(words.COLOURS[thing.piece.colour], np.float32)
    way = ink(thing.piece.colour) - base
    inked = np.clip((segments.unlit[window] - base) @ way / float(way @ way), 0, 1)
    inked[(inked < _FAINT) | (segments.owner[window] != thing.index)] = 0
    if inked.sum() < _INKED:
        return None
    known = _known_glyphs()[:, :, : inked.shape[0], : inked.shape[1]]
    known = known.reshape(len(words.MARKS), -1, inked.size)
    likeness = _likeness(known, inked.ravel())
    return words.MARKS[int(likeness.max(axis=1).argmax())]


def _likeness(known: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Of what is seen [n] to each that is known [..., n], up to a factor. Not by BLAS: see ``shape_fitting``."""
    norms = np.sqrt(np.einsum("mtn,mtn->mt", known, known)) + 1e-6
    return np.asarray(np.einsum("mtn,n->mt", known, seen) / norms)


@cache
def _known_glyphs() -> np.ndarray:
    """Each mark in places about the middle of its window: float32 [6, n, 18, 15]."""
    height, width = (edge + 2 * _MARGIN for edge in _BOX)
    return np.array(
        [
            [
                glyph_mask(mark, (width / 2 + right, height / 2 + down), height)[:, :width]
                for down in _SHIFTS
                for right in _SHIFTS
            ]
            for mark in words.MARKS
        ],
        np.float32,
    )


def _glyph_window(fit: Fit, margin: int) -> tuple[slice, slice]:
    """Rows and columns of the picture that hold the box of a mark, with a margin."""
    x, y = glyph_centre(fit.shape, fit.centre, fit.extent, fit.tilt, fit.direction)
    spans = []
    for middle, edge in zip((y, x), _BOX, strict=True):
        first = math.floor(middle - (edge - 1) / 2) - margin
        spans.append(slice(max(first, 0), max(first + edge + 2 * margin, 1)))
    return spans[0], spans[1]
