"""Image scenes sampled from (seed, index, split).

Positions are free, but every fact can be told: centres stay off the borders of their ninths, two neighbours are clearly
level or clearly not, an object hides a clear part of another or nothing, and of each enough is seen, in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from vcap_jax.world import vocabulary as words
from vcap_jax.world.drawing import (
    GLYPH,
    RING_HOLE,
    TURNS,
    glyph_centre,
    second_tone,
    shape_outline,
    shape_patch,
    turned,
)
from vcap_jax.world.image_facts import (
    COVERS,
    DETAIL_HIDDEN,
    LEVEL,
    MARKED_SHAPES,
    UNEVEN,
    Layers,
    facts_and_undecided,
    layers,
    share_in_front,
)
from vcap_jax.world.scenes import IMAGE_EDGE, ImageObject, ImageScene, pick, scene_rng

NINTH = IMAGE_EDGE / 3
"""Edge of a ninth in pixels."""
IMAGE_EXTENTS: Mapping[str, tuple[float, float]] = {"small": (17.0, 21.0), "large": (32.0, 38.0)}
"""Edge of the box around an object in pixels, by size."""
COUNTS: Mapping[int, float] = {4: 0.18, 5: 0.3, 6: 0.26, 7: 0.14, 8: 0.07, 9: 0.05}
"""Share of the scenes by their number of objects, before those of too few or too many facts are drawn again."""
FACTS = (20, 39)
"""Fewest and most facts of a picture."""
PLACE_MARGIN = 4.0
"""Pixels between a centre and the border of its ninth, at least."""
PICTURE_MARGIN = 3.0
"""Pixels between an outline and the border of the picture, at least: there the background is seen all around."""
MOST_HIDDEN: Mapping[str, float] = {"small": 0.2, "large": 0.3}
"""Share of an object's area that others hide, at most, by its size."""
SEEN_TONE = 80.0
"""How well a pattern's second tone is seen, at least (``drawing.second_tone``)."""
_TILT = math.radians(6)
_LARGE = 0.56
_PATTERN = 0.5
_MARK = 0.55
_INSIDE = 0.6
_EVEN = 0.12
"""Share of the proposals that are level with the neighbour before."""
_CROWDED = 0.7
"""Share of the proposals that lie close to another object."""
_TRIES = 24
"""Places that are tried for an object."""
_OBJECTS = 4
"""Objects that are tried for a place."""
_CRUMBS = 8
"""Pixels that may lie apart from the rest of an object's visible part once it is made thinner by a pixel."""
_LEAST_COVER = 0.09
"""Share of the other's area that an object in front hides, at least: clearly more than ``COVERS``."""
_GAP = 2
"""Pixels between objects that do not overlap, at least."""


@dataclass(frozen=True)
class _Body:
    """An object with what it covers.

    left, top: of the window. mask: bool [k, k], where the outline covers half of a pixel. grown: the same with
    ``_GAP`` pixels around. hole: where a ring is empty. area: pixels.
    """

    item: ImageObject
    left: int
    top: int
    mask: np.ndarray
    grown: np.ndarray
    hole: np.ndarray
    area: float


def sample_image_scene(seed: int, index: int, split: str = "train") -> ImageScene:
    """The picture number ``index`` of a split: the same on any machine."""
    rng = scene_rng("image", seed, split, index)
    while True:
        scene = _scene(rng)
        if scene is not None and FACTS[0] <= len(facts_and_undecided(scene)[0]) <= FACTS[1]:
            return scene


def _scene(rng: np.random.Generator) -> ImageScene | None:
    """A scene, or None where its objects found no room."""
    count = int(rng.choice(list(COUNTS), p=list(COUNTS.values())))
    background = pick(rng, tuple(words.BACKGROUNDS))
    light = pick(rng, words.LIGHTS)
    places = [words.IMAGE_PLACES[i] for i in rng.permutation(len(words.IMAGE_PLACES))[:count]]
    bodies: list[_Body] = []
    for place in places:
        drawn = (_put(rng, _body(_object(rng, place, background)), bodies) for _ in range(_OBJECTS))
        body = next((body for body in drawn if body is not None), None)
        if body is None:
            return None
        bodies.append(body)
    scene = ImageScene(
        objects=tuple(body.item for body in bodies),
        background=background,
        light=light,
        render_seed=int(rng.integers(2**31)),
    )
    return scene if _readable(scene) else None


def _object(rng: np.random.Generator, place: str, background: str) -> ImageObject:
    """An object in the middle of the picture, moved by a part of a pixel."""
    shape, colour = pick(rng, words.SHAPES), pick(rng, tuple(words.COLOURS))
    size = "large" if rng.random() < _LARGE else "small"
    kinds = rng.random(3)
    pattern = mark = inside = None
    if size == "large":
        if shape in MARKED_SHAPES and kinds[0] < _MARK:
            mark = pick(rng, words.MARKS)
        elif kinds[1] < _PATTERN and second_tone(colour, words.BACKGROUNDS[background])[1] >= SEEN_TONE:
            pattern = pick(rng, words.PATTERNS)
        if shape == "ring" and kinds[2] < _INSIDE:
            inside = pick(rng, [name for name in words.COLOURS if name != colour])
    middle = IMAGE_EDGE / 2 + rng.uniform(0, 1, 2)
    return ImageObject(
        place=place,
        shape=shape,
        colour=colour,
        size=size,
        pattern=pattern,
        direction=pick(rng, words.DIRECTIONS) if shape in words.DIRECTED else None,
        mark=mark,
        inside=inside,
        centre=(round(float(middle[0]), 3), round(float(middle[1]), 3)),
        extent=round(float(rng.uniform(*IMAGE_EXTENTS[size])), 3),
        tilt=round(float(rng.uniform(-_TILT, _TILT)), 4),
    )


def _body(item: ImageObject) -> _Body:
    top, left, coverage = shape_patch(item.shape, item.centre, item.extent, item.tilt, item.direction)
    coverage = np.pad(coverage, _GAP)
    mask = coverage >= 0.5
    hole = np.zeros_like(mask)
    if item.shape == "ring":
        middles = np.arange(mask.shape[0]) + 0.5
        x, y = middles - (item.centre[0] - left + _GAP), middles - (item.centre[1] - top + _GAP)
        hole = np.hypot(x[None, :], y[:, None]) < RING_HOLE * item.extent / 2
    grown = ndimage.binary_dilation(coverage > 0, iterations=_GAP)
    return _Body(item, left - _GAP, top - _GAP, mask, grown, hole, float(mask.sum()))


def _put(rng: np.random.Generator, body: _Body, others: list[_Body]) -> _Body | None:
    """The body at a place where it agrees with the others, all of which lie behind it; None if none was found."""
    low, high = _room(body.item)
    if (low > high).any():
        return None
    for dx, dy in _moves(rng, body.item, [other.item for other in others], low, high):
        moved = replace(body, left=body.left + dx, top=body.top + dy)
        if all(_apart_or_clear(moved, other) for other in others):
            x, y = body.item.centre
            return replace(moved, item=replace(body.item, centre=(round(x + dx, 3), round(y + dy, 3))))
    return None


def _moves(
    rng: np.random.Generator, item: ImageObject, others: list[ImageObject], low: np.ndarray, high: np.ndarray
) -> list[list[int]]:
    """Ways (x, y) in whole pixels to places between ``low`` and ``high`` that are level with neighbours or clearly
    not: proposals in the order in which they are to be tried."""
    targets = rng.uniform(low, high, (_TRIES, 2))
    crowded, pulls = rng.random(_TRIES) < _CROWDED, rng.uniform(0.2, 1, (_TRIES, 1))
    even, wobble = rng.random((_TRIES, 2)) < _EVEN, rng.uniform(-LEVEL, LEVEL, (_TRIES, 2))
    if others:
        # Towards the nearest of the others.
        centres = np.array([other.centre for other in others])
        nearest = np.square(targets[:, None] - centres).sum(axis=-1).argmin(axis=1)
        pulled = targets + pulls * (centres[nearest] - targets)
        targets = np.where(crowded[:, None], pulled, targets)
    beside = [
        (axis, other.centre[axis]) for axis in (0, 1) for other in others if _neighbours(item, other, axis)
    ]
    for axis, centre in beside:
        targets[:, axis] = np.where(even[:, axis], centre + wobble[:, axis], targets[:, axis])
    ways = np.rint(np.clip(targets, low, high) - item.centre).astype(int)
    ends = ways + item.centre
    fine = ((low <= ends) & (ends <= high)).all(axis=1)
    for axis, centre in beside:
        difference = abs(ends[:, axis] - centre)
        fine &= (difference <= LEVEL) | (difference >= UNEVEN)
    return ways[fine].tolist()


def _room(item: ImageObject) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest centre of an object in its place."""
    points = item.extent * turned(shape_outline(item.shape)[0], TURNS[item.direction] + item.tilt)
    row, column = divmod(words.IMAGE_PLACES.index(item.place), 3)
    first = NINTH * np.array([column, row])
    low = np.maximum(first + PLACE_MARGIN, PICTURE_MARGIN - points.min(axis=0))
    high = np.minimum(first + NINTH - PLACE_MARGIN, IMAGE_EDGE - PICTURE_MARGIN - points.max(axis=0))
    return low, high


def _neighbours(one: ImageObject, other: ImageObject, axis: int) -> bool:
    """Whether a "level" (axis 1) or "side" (axis 0) may be said of two objects."""
    pairs = words.ROW_NEIGHBOURS if axis else words.COLUMN_NEIGHBOURS
    return (one.place, other.place) in pairs or (other.place, one.place) in pairs


def _apart_or_clear(front: _Body, back: _Body) -> bool:
    """Whether two objects are clearly apart, or the one in front hides a clear part of the other."""
    same = front.item.colour == back.item.colour
    windows = _shared(front, back, 2 if same else 0)
    if windows is None:
        return True
    if same or front.item.colour == back.item.inside:
        return False
    a, b = windows
    if (front.mask[a] & back.hole[b]).any() or (front.hole[a] & back.mask[b]).any():
        return False
    hidden = float((front.mask[a] & back.mask[b]).sum()) / back.area
    if hidden == 0:
        return not (front.grown[a] & back.mask[b]).any()
    return _LEAST_COVER <= hidden <= MOST_HIDDEN[back.item.size]


def _shared(one: _Body, other: _Body, gap: int) -> tuple[tuple[slice, slice], tuple[slice, slice]] | None:
    """The part of the picture that both windows hold, in either's pixels; None if they are apart."""
    edges: list[tuple[slice, slice]] = []
    for start_one, start_other in ((one.top, other.top), (one.left, other.left)):
        first = max(start_one, start_other)
        last = min(start_one + one.mask.shape[0], start_other + other.mask.shape[0])
        if last + gap <= first:
            return None
        edges.append(
            (slice(first - start_one, last - start_one), slice(first - start_other, last - start_other))
        )
    (rows, other_rows), (columns, other_columns) = edges
    return (rows, columns), (other_rows, other_columns)


def _readable(scene: ImageScene) -> bool:
    """Whether enough is seen of every object, in one piece, and of its mark either all or clearly too little."""
    seen = layers(scene)
    most = [MOST_HIDDEN[item.size] for item in scene.objects]
    if (seen.hidden_share > most).any():
        return False
    small = (seen.hidden > 0) & (seen.hidden < 1.2 * COVERS)
    return not small.any() and all(
        seen.hidden_share[index] == 0 or _clear(scene.objects[index], index, seen)
        for index in range(len(scene.objects))
    )


def _clear(item: ImageObject, index: int, seen: Layers) -> bool:
    """Whether a partly hidden object's visible part is in one piece, and its mark is seen or clearly hidden."""
    # Two parts that hang together by a thread of pixels are not one piece.
    sizes = np.bincount(ndimage.label(ndimage.binary_erosion(seen.front == index))[0].ravel())[1:]
    if len(sizes) and sizes.sum() - sizes.max() > _CRUMBS:
        return False
    if item.size == "large" and item.shape in MARKED_SHAPES:
        centre = glyph_centre(item.shape, item.centre, item.extent, item.tilt, item.direction)
        roomy = (GLYPH[0] + 2 * _GAP, GLYPH[1] + 2 * _GAP)
        return (
            share_in_front(seen.front, index, centre, roomy) == 0
            or share_in_front(seen.front, index, centre, GLYPH) >= 2 * DETAIL_HIDDEN
        )
    return True
