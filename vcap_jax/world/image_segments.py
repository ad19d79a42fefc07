"""A picture taken apart: its background with its light, and for each pixel which piece of colour it belongs to.

Objects stay off the border of a picture, so a plane through what the border shows is the background everywhere. What
differs from it is given to one of the palette's hues; what holds together in one hue is a piece: one object, or the dot
inside a ring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from vcap_jax.world.drawing import ink, second_tone
from vcap_jax.world.image_rendering import LIFT, OBJECT_LIGHT
from vcap_jax.world.scenes import IMAGE_EDGE
from vcap_jax.world.sight import brought_to_size
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, LIGHTS

GROUND = -1
"""Owner of the pixels of the background."""
NOBODY = -2
"""Owner of pixels that belong neither to a piece nor to the background: what is too small, or a blend of colours."""
_CONTRAST = 30.0
"""Euclidean RGB distance from the background at which a pixel belongs to something else."""
_SURE = 34.0
"""Distance from a hue within which a pixel has it, and is no blend at an edge."""
_LIKELY = 64.0
"""The same for a pixel of a piece that has enough sure ones: compression blurs hues more than brightness."""
_SURE_SHARE = 0.3
"""Of a piece's pixels, at least: a line of blends between two other colours has fewer."""
_FULL = 0.85
"""Coverage from which on a pixel is no blend."""
_LEAST_PIECE = 36
"""Pixels."""
_MOST_PIECES = 20
_HOLE = 0.25
"""A hole of at most this share of a piece is a glyph; the hole of a ring is larger."""
_LEAST_MARKED = 26
"""Pixels that a thing which bears a mark is high or wide, at least."""
_LEAST_LIGHT = 0.03
"""Relative brightness from side to side, below which no light is seen."""
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_GROUNDS = np.array(list(BACKGROUNDS.values()), np.float32)
_BASES = np.array(list(COLOURS.values()), np.float32)
_INKS = np.array([ink(colour) for colour in COLOURS], np.float32)
_PIXEL = np.linspace(-1, 1, IMAGE_EDGE, dtype=np.float32)
_BORDER = np.ones((IMAGE_EDGE, IMAGE_EDGE), bool)
_BORDER[2:-2, 2:-2] = False
_PLANE = np.stack([np.ones((IMAGE_EDGE, IMAGE_EDGE), np.float32), *np.meshgrid(_PIXEL, _PIXEL)], axis=-1)
"""Constant and slopes, [128, 128, 3]."""
_PLANE_FIT = np.linalg.pinv(_PLANE[_BORDER])
_TONES = {
    name: np.array([second_tone(colour, ground)[0] for colour in COLOURS], np.float32)
    for name, ground in BACKGROUNDS.items()
}
"""Second tones [8, 3] before each background."""


@dataclass(frozen=True)
class Piece:
    """What holds together in one hue. colour: its name. box: rows and columns that it lies in. area: pixels."""

    colour: str
    box: tuple[slice, slice]
    area: int


@dataclass(frozen=True)
class Segments:
    """A picture taken apart.

    background: its name. light: the side that it comes from, None if none is seen.
    owner: int8 [128, 128], index of the piece that a pixel belongs to, ``GROUND`` or ``NOBODY``.
    coverage: float32 [128, 128], how much of each pixel its piece fills.
    clear: bool [128, 128], False where the colours of two pieces blend, or of what is nobody's.
    tone: float32 [128, 128], from 0 where a piece shows its colour to 1 where it shows its second tone.
    unlit: float32 [128, 128, 3], the picture as objects would look without the light.
    """

    background: str
    light: str | None
    pieces: tuple[Piece, ...]
    owner: np.ndarray
    coverage: np.ndarray
    clear: np.ndarray
    tone: np.ndarray
    unlit: np.ndarray


def segment(picture: np.ndarray) -> Segments:
    """Takes a picture apart, uint8 [H, W, 3] of any size. Raises ValueError for anything that is no such array."""
    pixels = brought_to_size(picture, IMAGE_EDGE).astype(np.float32)
    ground, light, shade = _background(pixels)
    contrast = np.sqrt(np.einsum("yxc,yxc->yx", away := pixels - ground, away))
    name = list(BACKGROUNDS)[int(np.square(_GROUNDS - ground.mean(axis=(0, 1))).sum(axis=1).argmin())]
    unlit = pixels / (1 + OBJECT_LIGHT * shade)[..., None]
    front = contrast > _CONTRAST
    hues, distance, along = _hues(unlit[front], _TONES[name])
    hue = np.full(front.shape, -1, np.int8)
    hue[front] = np.where(distance < _LIKELY, hues, -1)
    tone, away = np.zeros(front.shape, np.float32), np.zeros(front.shape, np.float32)
    tone[front], away[front] = along, distance
    owner, pieces = _pieces(hue, front & (away < _SURE), front)
    share = contrast / (contrast + away + 1e-6)
    filled = _fill_glyphs(owner, pieces)
    coverage = np.where(owner >= 0, np.where(filled, 1, share), 0).astype(np.float32)
    return Segments(
        background=name,
        light=light,
        pieces=tuple(pieces),
        owner=owner,
        coverage=coverage,
        clear=(owner != NOBODY) & ~(_beside_others(owner) & (coverage < _FULL)),
        tone=tone,
        unlit=unlit,
    )


def _background(pixels: np.ndarray) -> tuple[np.ndarray, str | None, np.ndarray]:
    """The background [128, 128, 3] everywhere, the side of its light, and its relative brightness [128, 128]."""
    plane = (_PLANE_FIT @ pixels[_BORDER]).astype(np.float32)
    brightness = plane @ _LUMA
    relative = brightness[1:] / (abs(brightness[0]) + LIFT)
    axis = int(abs(relative).argmax())
    light = LIGHTS[2 * axis + int(relative[axis] > 0)] if abs(relative[axis]) > _LEAST_LIGHT else None
    shade = np.clip(_PLANE[..., 1:] @ relative, -0.5, 0.5)
    return _PLANE @ plane, light, shade


def _hues(colours: np.ndarray, tones: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nearest hue of each colour [n, 3] (-1 if it is rather ink), the distance from it, and how far the colour is
    towards the hue's second tone.

    A hue is all that lies between a colour of the palette and its second tone, of the hues that are there at all.
    """
    squares = np.square(colours).sum(axis=1, keepdims=True)
    from_base = squares - 2 * colours @ _BASES.T + np.square(_BASES).sum(axis=1)
    nearest = from_base.argmin(axis=1)
    rows = np.arange(len(nearest))
    there = np.bincount(nearest[from_base[rows, nearest] < _LIKELY**2], minlength=len(_BASES))
    present = np.flatnonzero(there >= _LEAST_PIECE // 2)
    if not len(present):
        present = np.arange(len(_BASES))
    bases, ways = _BASES[present], (tones - _BASES)[present]
    lengths = np.sqrt(np.square(ways).sum(axis=1))
    units = ways / lengths[:, None]
    along = colours @ units.T - (bases * units).sum(axis=1)
    reached = np.clip(along, 0, lengths)
    square = from_base[:, present] + reached * (reached - 2 * along)
    best = square.argmin(axis=1)
    distance = np.sqrt(np.maximum(square[rows, best], 0))
    tone = reached[rows, best] / lengths[best]
    inks = (squares - 2 * colours @ _INKS.T + np.square(_INKS).sum(axis=1)).min(axis=1)
    inked = inks < square[rows, best]
    return np.where(inked, -1, present[best]).astype(np.int8), distance, tone


def _pieces(hue: np.ndarray, sure: np.ndarray, front: np.ndarray) -> tuple[np.ndarray, list[Piece]]:
    """Owners [128, 128] and pieces, the largest first, from the hues of pixels, which of them are sure, and which are
    not background."""
    found: list[tuple[int, str, tuple[slice, slice], np.ndarray]] = []
    for number, colour in enumerate(COLOURS):
        mask = hue == number
        # A line between two other colours may be as wide as one pixel in this one.
        core = mask[:-1, :-1] & mask[1:, :-1] & mask[:-1, 1:] & mask[1:, 1:]
        if np.count_nonzero(core) < _LEAST_PIECE // 2:
            continue
        thick = np.zeros_like(mask)
        for rows in (slice(0, -1), slice(1, None)):
            for columns in (slice(0, -1), slice(1, None)):
                thick[rows, columns] |= core
        # What is only a pixel or two apart is one piece, with a line of blended pixels in it.
        labels = np.where(thick, ndimage.label(_widened(thick))[0], 0)
        sizes = np.bincount(labels.ravel())
        boxes = ndimage.find_objects(labels)
        sures = np.bincount(labels.ravel(), weights=sure.ravel())
        for label in np.flatnonzero((sizes >= _LEAST_PIECE) & (sures >= _SURE_SHARE * sizes)).tolist():
            if label == 0:
                continue
            box = boxes[label - 1]
            found.append((int(sizes[label]), colour, box, labels[box] == label))
    found.sort(key=lambda piece: -piece[0])
    owner = np.where(front, np.int8(NOBODY), np.int8(GROUND))
    pieces = []
    for index, (area, colour, box, mask) in enumerate(found[:_MOST_PIECES]):
        owner[box][mask] = index
        pieces.append(Piece(colour, box, area))
    for _ in range(2):
        _grow(owner)
    return owner, pieces


def _widened(mask: np.ndarray) -> np.ndarray:
    """A mask with the pixels above, below, left and right of its own."""
    wide = mask.copy()
    wide[1:] |= mask[:-1]
    wide[:-1] |= mask[1:]
    wide[:, 1:] |= mask[:, :-1]
    wide[:, :-1] |= mask[:, 1:]
    return wide


def _grow(owner: np.ndarray) -> None:
    """Gives pixels that are no piece's to a piece beside them."""
    beside = np.full_like(owner, NOBODY)
    np.maximum(beside[1:], owner[:-1], out=beside[1:])
    np.maximum(beside[:-1], owner[1:], out=beside[:-1])
    np.maximum(beside[:, 1:], owner[:, :-1], out=beside[:, 1:])
    np.maximum(beside[:, :-1], owner[:, 1:], out=beside[:, :-1])
    taken = (owner == NOBODY) & (beside >= 0)
    owner[taken] = beside[taken]


def _beside_others(owner: np.ndarray) -> np.ndarray:
    """Pixels of pieces next to pixels of other pieces, bool [128, 128]."""
    found = np.zeros(owner.shape, bool)
    for one, other, here, there in (
        (owner[1:], owner[:-1], found[1:], found[:-1]),
        (owner[:, 1:], owner[:, :-1], found[:, 1:], found[:, :-1]),
    ):
        meet = (one != other) & (one >= 0) & (other >= 0)
        np.logical_or(here, meet, out=here)
        np.logical_or(there, meet, out=there)
    return found


def _fill_glyphs(owner: np.ndarray, pieces: list[Piece]) -> np.ndarray:
    """Gives small holes to the piece around them; returns where, bool [128, 128]."""
    filled = np.zeros(owner.shape, bool)
    for index, piece in enumerate(pieces):
        rows, columns = piece.box
        if max(rows.stop - rows.start, columns.stop - columns.start) < _LEAST_MARKED:
            continue
        window = (
            slice(max(rows.start - 2, 0), rows.stop + 2),
            slice(max(columns.start - 2, 0), columns.stop + 2),
        )
        here = owner[window]
        holes, count = ndimage.label(here != index)
        if count < 2:
            continue
        sizes = np.bincount(holes.ravel())
        sizes[0] = 0
        outside = np.concatenate([holes[0], holes[-1], holes[:, 0], holes[:, -1], holes[here >= 0]])
        sizes[outside] = 0
        small = (sizes > 0) & (sizes < _HOLE * piece.area)
        inside = small[holes]
        here[inside] = index
        filled[window] |= inside
    return filled
