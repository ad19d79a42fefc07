"""Video scenes sampled from (seed, index, split).

A clip has two or three shots, each in front of another background than the one before. Geometry is drawn so that every
fact can be told: an object stays off the borders of its quarter for as long as it is seen, and one that moves covers
``LEAST_WAY`` pixels at least while it is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from vcap_jax.world import vocabulary as words
from vcap_jax.world.scenes import VIDEO_EDGE, Shot, VideoObject, VideoScene, pick, scene_rng
from vcap_jax.world.video_facts import video_facts

QUARTER = VIDEO_EDGE // 2
"""Edge of a quarter in pixels."""
VIDEO_EXTENTS: Mapping[str, tuple[float, float]] = {"small": (14.0, 17.0), "large": (24.0, 28.0)}
"""Edge of the box around an object in pixels, by size."""
LEAST_SHOT = 4
"""Frames of a shot, at least."""
MOST_OBJECTS = 3
MOST_EVENTS = 2
"""Of a shot: then at most two things happen in it, and "the first" is one of two."""
FACTS = (25, 50)
"""Fewest and most facts of a clip."""
STEPS = (2.0, 4.5)
"""Pixels that a moving object advances per frame."""
LEAST_WAY = 4.0
"""Pixels that a moving object covers while it is seen."""
DIRECTIONS: Mapping[str, tuple[int, int]] = {
    "still": (0, 0),
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
}
"""(x, y) of a motion, y downwards."""
_REACH = 0.54
"""How far the outline of a tilted shape reaches from its centre, in extents, at most."""
_MARGIN = 1.5
"""Pixels between an object and the border of its quarter, at least."""
_TILT = math.radians(6)
_EVENT_SHARE = 0.4
"""Of the objects."""
_THREE_SHOTS = 0.38
"""Share of the clips before those of too few or too many facts are drawn again; of those that are left, half."""


def quarter_origin(place: str) -> tuple[int, int]:
    """(x, y) of a quarter's first pixel."""
    row, column = divmod(words.VIDEO_PLACES.index(place), 2)
    return column * QUARTER, row * QUARTER


def sample_video_scene(seed: int, index: int, split: str = "train") -> VideoScene:
    """The clip number ``index`` of a split: the same on any machine."""
    rng = scene_rng("video", seed, split, index)
    while True:
        scene = _scene(rng)
        if FACTS[0] <= len(video_facts(scene)) <= FACTS[1]:
            return scene


def _scene(rng: np.random.Generator) -> VideoScene:
    shots: list[Shot] = []
    for first, last in _spans(rng):
        before = shots[-1].background if shots else None
        background = pick(rng, [name for name in words.BACKGROUNDS if name != before])
        camera = pick(rng, words.CAMERAS)
        places = sorted(
            rng.choice(len(words.VIDEO_PLACES), int(rng.integers(1, MOST_OBJECTS + 1)), replace=False)
        )
        objects: list[VideoObject] = []
        for place in places:
            may_act = sum(thing.event is not None for thing in objects) < MOST_EVENTS
            objects.append(_object(rng, words.VIDEO_PLACES[place], first, last, may_act))
        shots.append(
            Shot(first=first, last=last, background=background, camera=camera, objects=tuple(objects))
        )
    return VideoScene(shots=tuple(shots), render_seed=int(rng.integers(2**31)))


def _spans(rng: np.random.Generator) -> list[tuple[int, int]]:
    """First and last frame (exclusive) of each shot: all ways to cut that leave ``LEAST_SHOT`` frames are alike."""
    single = [cut for cut in words.CHANGE_FRAMES if LEAST_SHOT <= cut <= words.VIDEO_FRAMES - LEAST_SHOT]
    ways: list[tuple[int, ...]] = [(cut,) for cut in single]
    if rng.random() < _THREE_SHOTS:
        ways = [(first, second) for first in single for second in single if second - first >= LEAST_SHOT]
    cuts = pick(rng, ways)
    return list(zip((0, *cuts), (*cuts, words.VIDEO_FRAMES), strict=True))


def _object(rng: np.random.Generator, place: str, first: int, last: int, may_act: bool) -> VideoObject:
    colour, size, motion = pick(rng, tuple(words.COLOURS)), pick(rng, words.SIZES), pick(rng, words.MOTIONS)
    shape = pick(rng, words.SHAPES)
    event: str | None = None
    at: int | None = None
    into: str | None = None
    if may_act and rng.random() < _EVENT_SHARE:
        inside = [frame for frame in words.CHANGE_FRAMES if first < frame < last]
        event, at = pick(rng, words.EVENTS), pick(rng, inside)
        if event == "changes":
            into = pick(rng, [name for name in words.COLOURS if name != colour])
    seen_from = at if event == "appears" and at is not None else first
    seen_to = at if event == "disappears" and at is not None else last
    extent = float(rng.uniform(*VIDEO_EXTENTS[size]))
    moves = seen_to - seen_from - 1
    free = QUARTER - 2 * (_REACH * extent + _MARGIN)
    length = rng.uniform(max(STEPS[0], LEAST_WAY / moves), min(STEPS[1], free / moves))
    step = np.array(DIRECTIONS[motion]) * round(float(length), 3)
    # Where the middle of the way lies is free as far as the way leaves room.
    slack = (free - np.abs(step) * moves) / 2
    middle = np.array(quarter_origin(place)) + QUARTER / 2 + rng.uniform(-1, 1, 2) * np.maximum(slack, 0)
    start = middle - step * (seen_from - first + moves / 2)
    return VideoObject(
        place=place,
        shape=shape,
        colour=colour,
        size=size,
        motion=motion,
        event=event,
        at=at,
        into=into,
        start=(round(float(start[0]), 3), round(float(start[1]), 3)),
        step=(float(step[0]), float(step[1])),
        extent=round(extent, 3),
        tilt=round(float(rng.uniform(-_TILT, _TILT)), 4),
    )
