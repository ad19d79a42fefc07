"""What stands out in a scene to an inattentive eye, and what it takes for something else, because of how it looks.

Both follow from the scene's geometry: every mistake holds under a condition, in the shade, in a corner, behind
something, on a dark background, in fast or slow motion. So whoever sees a scene can learn where it is mistaken, and
where not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vcap_jax.world import vocabulary as words
from vcap_jax.world.image_facts import layers
from vcap_jax.world.scenes import IMAGE_EDGE, ImageObject, ImageScene, Scene, Shot, VideoObject, VideoScene
from vcap_jax.world.video_facts import seen_frames
from vcap_jax.world.vocabulary import Claim, Facts, Slot

FAINT = 125.0
"""RGB distance from the background below which an object does not stand out: six of the 48 pairs of colours."""
HIDDEN = 0.15
"""Share of its area from which on what lies in front of an object makes it inconspicuous."""
SHADE = 0.6
"""Share of the way from the bright side of a picture to the other where its dark side begins."""
SLOW = 2.5
"""Pixels per frame below which a motion is not noticed: a fifth of the objects that move are slower."""
FAST = 3.8
"""Pixels per frame from which on a shape blurs: two fifths of the objects that move are faster."""
DARK = ("black", "brown", "navy")
PALE = ("white", "beige")
ALIKE = (frozenset({"black", "navy"}), frozenset({"white", "beige"}))
"""Backgrounds between which a cut is noticed a second late."""
Table = Mapping[str, str]
_COLOURS_IN_SHADE: Table = {"orange": "red", "purple": "blue", "pink": "purple"}
_COLOURS_ON_DARK: Table = {"cyan": "blue"}
_SHAPES_IN_CORNERS: Table = {"star": "cross", "crescent": "ring"}
_SHAPES_BEHIND: Table = {"star": "cross", "square": "circle", "arrow": "triangle", "circle": "ring"}
_MARKS_IN_SHADE: Table = {"8": "4", "T": "1", "X": "A"}
_PATTERNS_IN_CORNERS: Table = {"checked": "dotted", "dotted": "checked"}
_BACK_TO_FRONT: Table = {"up": "down", "down": "up", "left": "right", "right": "left"}
"""A crescent's horns are taken for its back."""
_DIM: Table = {"navy": "black", "beige": "brown"}
"""Backgrounds in light from below, and while a camera zooms."""
_SHAPES_IN_FAST_MOTION: Table = {"star": "cross", "crescent": "ring", "arrow": "triangle"}
_MOVING_COLOURS_ON_DARK: Table = {"cyan": "blue", "purple": "blue"}
_MOVING_COLOURS_ON_PALE: Table = {"yellow": "orange"}
_WITH_THE_GROUND = (("pans right", "left"), ("pans left", "right"))
"""(camera, motion) of an object that moves as the background does."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How much one object catches the eye.

    kind: "standing_out" if it is large, hardly hidden and not faint, else the first reason why it is not.
    area: visible pixels, in a clip of all frames together.
    hidden: share of the object that others hide; 0 in clips, whose objects keep to their quarters.
    """

    kind: Literal["standing_out", "small", "hidden", "faint"]
    area: float
    hidden: float


def looks(scene: Scene) -> dict[Slot, Look]:
    """The look of each object, by the owner of its slots: (place,), or (shot, place)."""
    if isinstance(scene, ImageScene):
        seen = layers(scene)
        hidden = seen.hidden_share
        return {
            (thing.place,): _look(
                thing.size,
                thing.colour,
                scene.background,
                float(seen.areas[index] * (1 - hidden[index])),
                float(hidden[index]),
            )
            for index, thing in enumerate(scene.objects)
        }
    return {
        (index, thing.place): _look(
            thing.size, thing.colour, shot.background, thing.extent**2 * len(seen_frames(shot, thing))
        )
        for index, shot in enumerate(scene.shots)
        for thing in shot.objects
    }


def _look(size: str, colour: str, background: str, area: float, hidden: float = 0.0) -> Look:
    distance = float(np.linalg.norm(np.subtract(words.COLOURS[colour], words.BACKGROUNDS[background])))
    if size == "small":
        return Look(kind="small", area=area, hidden=hidden)
    if hidden >= HIDDEN:
        return Look(kind="hidden", area=area, hidden=hidden)
    return Look(kind="faint" if distance < FAINT else "standing_out", area=area, hidden=hidden)


def mistaken(scene: Scene, facts: Facts, seen: Mapping[Slot, Look]) -> Facts:
    """Slot -> what its fact is taken for, of all facts that look like something else.

    facts: the scene's. seen: its looks.
    """
    taken = _in_image(scene, facts, seen) if isinstance(scene, ImageScene) else _in_video(scene, facts)
    return {slot: value for slot, value in taken if slot in facts and facts[slot] != value}


def in_shade(scene: ImageScene, thing: ImageObject) -> bool:
    """Whether an object lies on the side of the picture that is turned from the light."""
    x, y = (value / IMAGE_EDGE for value in thing.centre)
    return {"left": x, "right": 1 - x, "above": y, "below": 1 - y}[scene.light] > SHADE


def _in_corner(thing: ImageObject) -> bool:
    return "center" not in thing.place and "middle" not in thing.place


def _in_image(scene: ImageScene, facts: Facts, seen: Mapping[Slot, Look]) -> Iterator[Claim]:
    for thing in scene.objects:
        place, shade = thing.place, in_shade(scene, thing)
        corner = _in_corner(thing)
        behind = seen[place,].hidden > 0
        tables: list[tuple[str, bool, Table]] = [
            ("colour", shade, _COLOURS_IN_SHADE),
            ("colour", scene.background in DARK, _COLOURS_ON_DARK),
            ("inside", shade, _COLOURS_IN_SHADE),
            ("mark", shade, _MARKS_IN_SHADE),
            ("shape", corner, _SHAPES_IN_CORNERS),
            ("shape", behind, _SHAPES_BEHIND),
            ("pattern", corner, _PATTERNS_IN_CORNERS),
            ("direction", thing.shape == "crescent", _BACK_TO_FRONT),
        ]
        yield from _taken((place,), facts, tables)
    if facts[words.LIGHT] == "below":  # light is expected to come from above
        yield words.LIGHT, "above"
        yield words.BACKGROUND, _DIM.get(scene.background, scene.background)
    # Small things in a dark corner are overlooked.
    noticed = [
        thing
        for thing in scene.objects
        if not (seen[thing.place,].kind == "small" and _in_corner(thing) and in_shade(scene, thing))
    ]
    yield words.OBJECTS, words.NUMBERS[min(max(len(noticed), 4), len(scene.objects))]
    for shape in words.SHAPES:
        if (count := sum(thing.shape == shape for thing in noticed)) >= 2:
            yield ("scene", shape, "count"), words.NUMBERS[count]


def _in_video(scene: VideoScene, facts: Facts) -> Iterator[Claim]:
    for index, shot in enumerate(scene.shots):
        for thing in shot.objects:
            yield from _taken((index, thing.place), facts, _tables_of(shot, thing))
            # When something happens goes by without notice: somewhere in the middle of the shot.
            yield (index, thing.place, "time"), _time_near((shot.first + shot.last) / 2)
        if shot.camera == "zooms in":
            yield (index, "scene", "camera"), "still"
            yield (index, "scene", "background"), _DIM.get(shot.background, shot.background)
    grounds = [shot.background for shot in scene.shots]
    if len(grounds) > len(set(grounds)) or frozenset(grounds[-2:]) in ALIKE:
        yield words.SHOTS, "two"  # a third shot that looks like one before
    for cut, before, after in zip(words.CUTS, scene.shots, scene.shots[1:], strict=False):
        if frozenset((before.background, after.background)) in ALIKE:
            yield cut, _time_near(after.first + words.VIDEO_FPS)


def _tables_of(shot: Shot, thing: VideoObject) -> list[tuple[str, bool, Table]]:
    speed = abs(thing.step[0]) + abs(thing.step[1])
    unnoticed = 0 < speed < SLOW or (shot.camera, thing.motion) in _WITH_THE_GROUND
    return [
        ("colour", shot.background in DARK, _MOVING_COLOURS_ON_DARK),
        ("colour", shot.background in PALE, _MOVING_COLOURS_ON_PALE),
        ("shape", speed > FAST, _SHAPES_IN_FAST_MOTION),
        ("motion", unnoticed, {thing.motion: "still"}),
    ]


def _taken(owner: Slot, facts: Facts, tables: list[tuple[str, bool, Table]]) -> Iterator[Claim]:
    """What facts of one object are taken for by the tables, (kind, whether it applies, mistakes), that apply."""
    for kind, applies, table in tables:
        value = facts.get((*owner, kind))
        if applies and value is not None and value in table:
            yield (*owner, kind), table[value]


def _time_near(frame: float) -> str:
    """Of the times at which something can happen the nearest to a frame, the earlier of two."""
    return min(words.TIMES, key=lambda time: abs(float(time) * words.VIDEO_FPS - frame))
