"""Reads the facts of a picture out of its pixels: the adjudicator's eyes for images.

A picture is taken apart into pieces of one colour (``image_segments``), each of which is fitted with a shape that may
go on behind the pieces in front of it (``image_things``). Places, levels, sides and what covers what follow from the
fits; pattern and mark from what is seen inside them (``image_details``). Nothing else is used, so that PNG and JPEG are
read alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vcap_jax.world.image_details import mark_is_hidden, see_mark, see_pattern
from vcap_jax.world.image_facts import COVERS, LEVEL, MARKED_SHAPES, SHAPE_HIDDEN, TOUCHES, UNEVEN, counts
from vcap_jax.world.image_segments import Segments, segment
from vcap_jax.world.image_things import Thing, covers, find_things
from vcap_jax.world.sight import Sight
from vcap_jax.world.vocabulary import (
    BACKGROUND,
    COLUMN_NEIGHBOURS,
    LEVELS,
    LIGHT,
    NUMBERS,
    OBJECTS,
    ROW_NEIGHBOURS,
    SHAPES,
    SIDES,
    Facts,
    Slot,
)

_OWN_KINDS = ("shape", "colour", "size", "pattern", "direction", "mark", "inside")
_SHAPE_KINDS = ("shape", "direction", "size", "mark", "inside")
"""What cannot be told of a thing most of which is hidden."""


def see_image(picture: np.ndarray) -> Sight:
    """Reads a picture, uint8 [H, W, 3] of any size, as an image scene.

    Raises ValueError for anything that is not such an array.
    """
    segments = segment(picture)
    things = find_things(segments)
    hiding = covers(things, segments)
    facts: Facts = {BACKGROUND: segments.background}
    unknown: set[Slot] = set()
    if segments.light is None:
        unknown.add(LIGHT)
    else:
        facts[LIGHT] = segments.light
    by_place: dict[str, Thing] = {}
    for thing in things:
        by_place.setdefault(thing.place, thing)
    for place, thing in by_place.items():
        hidden = sum(share for (_, back), share in hiding.items() if back == thing.index)
        _describe(thing, place, hidden, segments, facts, unknown)
    _relate(by_place, hiding, facts, unknown)
    told = facts.keys() - unknown
    shapes = [facts[place, "shape"] for place in by_place if (place, "shape") in told]
    if len(shapes) < len(by_place):
        unknown |= {("scene", shape, "count") for shape in SHAPES}
    else:
        facts |= counts(shapes)
    facts[OBJECTS] = NUMBERS[len(by_place)]
    return Sight(
        facts={slot: value for slot, value in facts.items() if slot not in unknown},
        unknown=frozenset(unknown),
        shots=(),
        prominence={(place,): float(thing.piece.area) for place, thing in by_place.items()},
    )


def _describe(
    thing: Thing, place: str, hidden: float, segments: Segments, facts: Facts, unknown: set[Slot]
) -> None:
    """Adds what is to be said of one object alone; hidden: share of it that others hide."""
    if thing.strange:
        unknown |= {(place, kind) for kind in _OWN_KINDS}
        return
    facts[place, "colour"] = thing.piece.colour
    facts[place, "shape"] = thing.fit.shape
    facts[place, "size"] = thing.size
    if thing.fit.direction is not None:
        facts[place, "direction"] = thing.fit.direction
    if thing.inside is not None:
        facts[place, "inside"] = thing.inside
    if hidden >= SHAPE_HIDDEN:
        unknown |= {(place, kind) for kind in _SHAPE_KINDS}
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


def _relate(
    by_place: Mapping[str, Thing],
    hiding: Mapping[tuple[int, int], float],
    facts: Facts,
    unknown: set[Slot],
) -> None:
    """Adds what is to be said of two objects."""
    margin = (UNEVEN - LEVEL) / 4
    for pairs, kind, axis, (more, less) in (
        (ROW_NEIGHBOURS, "level", 1, LEVELS),
        (COLUMN_NEIGHBOURS, "side", 0, SIDES),
    ):
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
