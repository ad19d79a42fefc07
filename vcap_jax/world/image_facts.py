"""What an image scene shows: facts by its geometry, and what its pixels leave open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vcap_jax.world import vocabulary as words
from vcap_jax.world.drawing import GLYPH, RING_HOLE, glyph_centre, shape_patch
from vcap_jax.world.scenes import IMAGE_EDGE, ImageObject, ImageScene
from vcap_jax.world.vocabulary import Facts, Slot

LEVEL = 6.0
"""Two neighbours whose centres differ by at most this many pixels are level: nothing is said of them."""
UNEVEN = 10.0
"""From this many pixels on one is higher (or further left) than the other; in between nothing is decided."""
TOUCHES = 0.02
"""An object that hides a smaller share of another's area does not cover it."""
COVERS = 0.06
"""One that hides at least this share does; in between nothing is decided."""
SHAPE_HIDDEN = 0.35
"""From this hidden share on an object's shape cannot be told, nor what follows from it."""
SHAPE_KINDS = ("shape", "direction", "size", "mark", "inside")
"""What that is."""
ALL_HIDDEN = 0.8
"""From this hidden share on nothing of an object can be told, not even whether it is there."""
DETAIL_HIDDEN = 0.12
"""From this hidden share of its middle on it cannot be told which mark or dot an object has."""
MARKED_SHAPES = ("circle", "square", "triangle")
"""Shapes wide enough in the middle to bear a mark."""


@dataclass(frozen=True)
class Layers:
    """Which of n objects is seen where.

    front: int8 [128, 128], the object in front (its index in the scene), -1 for the background.
    areas: pixels of each object as if nothing hid it, [n].
    hidden: [n, n], share of the area of object i where object j is in front.
    """

    front: np.ndarray
    areas: np.ndarray
    hidden: np.ndarray

    @property
    def hidden_share(self) -> np.ndarray:
        """Share of each object's area that others hide, [n]."""
        return self.hidden.sum(axis=1)


@lru_cache(maxsize=64)
def layers(scene: ImageScene) -> Layers:
    """Which object is seen where: a pixel belongs to the last one drawn that covers at least half of it.

    Kept for the scenes asked about last, as a scene's facts and what is undecided of it are asked for one by one. The
    arrays cannot be written to.
    """
    count = len(scene.objects)
    front = np.full((IMAGE_EDGE, IMAGE_EDGE), -1, np.int8)
    masks: list[tuple[tuple[slice, slice], np.ndarray]] = []
    for index, item in enumerate(scene.objects):
        window, mask = _solid(item)
        front[window][mask] = index
        masks.append((window, mask))
    areas = np.array([mask.sum() for _, mask in masks], float)
    hidden = np.zeros((count, count))
    for index, (window, mask) in enumerate(masks):
        hidden[index] = np.bincount(front[window][mask] + 1, minlength=count + 1)[1:] / areas[index]
        hidden[index, index] = 0
    for array in (front, areas, hidden):
        array.setflags(write=False)
    return Layers(front=front, areas=areas, hidden=hidden)


@lru_cache(maxsize=64)
def _solid(item: ImageObject) -> tuple[tuple[slice, slice], np.ndarray]:
    """The window of the picture that holds an object, and where in it the object covers half of a pixel."""
    top, left, coverage = shape_patch(item.shape, item.centre, item.extent, item.tilt, item.direction)
    first_row, first_column = max(-top, 0), max(-left, 0)
    mask = coverage[first_row : IMAGE_EDGE - top, first_column : IMAGE_EDGE - left] >= 0.5
    top, left = top + first_row, left + first_column
    return (slice(top, top + mask.shape[0]), slice(left, left + mask.shape[1])), mask


def image_facts(scene: ImageScene) -> Facts:
    """All facts of a picture; the slots are those of ``vocabulary``, without the ones of ``image_undecided``."""
    return facts_and_undecided(scene)[0]


def image_undecided(scene: ImageScene) -> frozenset[Slot]:
    """Slots about which the pixels decide nothing: what is hidden, and what is too close to call."""
    return facts_and_undecided(scene)[1]


def facts_and_undecided(scene: ImageScene) -> tuple[Facts, frozenset[Slot]]:
    """``image_facts`` and ``image_undecided``, at the price of one."""
    seen = layers(scene)
    undecided = _hidden_slots(scene, seen)
    facts: Facts = {}
    for item in scene.objects:
        for kind in words.IMAGE_ATTRIBUTES:
            value = getattr(item, kind)
            if value is not None:
                facts[item.place, kind] = value
    centres = {item.place: item.centre for item in scene.objects}
    facts |= _relations(centres, undecided)
    for back, front in zip(*np.nonzero(seen.hidden >= TOUCHES), strict=True):
        one, other = scene.objects[front].place, scene.objects[back].place
        if seen.hidden[back, front] >= COVERS:
            facts[one, other, "overlap"] = "covers"
        else:
            undecided |= {(one, other, "overlap"), (other, one, "overlap")}
    facts |= counts([item.shape for item in scene.objects])
    facts[words.OBJECTS] = words.NUMBERS[len(scene.objects)]
    facts[words.BACKGROUND] = scene.background
    facts[words.LIGHT] = scene.light
    return {slot: value for slot, value in facts.items() if slot not in undecided}, frozenset(undecided)


def counts(shapes: list[str]) -> Facts:
    """How many there are of each shape that there is more than one of."""
    return {
        ("scene", shape, "count"): words.NUMBERS[count]
        for shape, count in Counter(shapes).items()
        if count >= 2
    }


def _relations(centres: dict[str, tuple[float, float]], undecided: set[Slot]) -> Facts:
    """Levels and sides of neighbours by their centres; what is too close to call is added to ``undecided``."""
    facts: Facts = {}
    for kind, pairs, axis, (more, less) in words.NEIGHBOURS:
        for one, other in pairs:
            if one in centres and other in centres:
                difference = centres[other][axis] - centres[one][axis]
                if abs(difference) >= UNEVEN:
                    facts[one, other, kind] = more if difference > 0 else less
                elif abs(difference) > LEVEL:
                    undecided.add((one, other, kind))
    return facts


def _hidden_slots(scene: ImageScene, seen: Layers) -> set[Slot]:
    """Slots that are undecided because something lies in front."""
    undecided: set[Slot] = set()
    for index, item in enumerate(scene.objects):
        share = seen.hidden_share[index]
        if share == 0 and item.shape != "ring":
            continue
        if share >= SHAPE_HIDDEN:
            undecided |= {(item.place, kind) for kind in SHAPE_KINDS}
            undecided |= {
                (*pair, kind) for kind, pairs, *_ in words.NEIGHBOURS for pair in pairs if item.place in pair
            }
            undecided |= {("scene", shape, "count") for shape in words.SHAPES}
        if share >= ALL_HIDDEN:
            undecided |= {(item.place, kind) for kind in ("colour", "pattern")} | {words.OBJECTS}
        if item.size == "large" and item.shape in MARKED_SHAPES:
            x, y = glyph_centre(item.shape, item.centre, item.extent, item.tilt, item.direction)
            if share_in_front(seen.front, index, (x, y), GLYPH) >= DETAIL_HIDDEN:
                undecided.add((item.place, "mark"))
        elif item.size == "large" and item.shape == "ring":
            hole = RING_HOLE * item.extent * 0.8
            if share_in_front(seen.front, index, item.centre, (hole, hole)) >= DETAIL_HIDDEN:
                undecided.add((item.place, "inside"))
    return undecided


def share_in_front(
    front: np.ndarray, index: int, centre: tuple[float, float], box: tuple[float, float]
) -> float:
    """Share of a box (width, height) about a point that objects drawn later than object ``index`` hide.

    front: as in ``Layers``.
    """
    left, top = (max(round(c - edge / 2), 0) for c, edge in zip(centre, box, strict=True))
    right, bottom = (max(round(c + edge / 2), 1) for c, edge in zip(centre, box, strict=True))
    return float((front[top:bottom, left:right] > index).mean())
