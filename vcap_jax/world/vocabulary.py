"""What there is to see, and what it is called: the values of every kind of fact.

A slot is a question that a picture or clip answers; its last part is the kind of the fact, what stands before it is the
owner. A claim is a slot with an answer. The slots of an image:

    (place, "shape" | "colour" | "size")          every object
    (place, "pattern")                            only an object that has one
    (place, "direction")                          only a triangle, an arrow or a crescent
    (place, "mark")                               only an object that bears a digit or letter
    (place, "inside")                             only a ring with a dot in its hole: the dot's colour
    (place, other place, "level")                 neighbours of a row, one clearly "higher" or "lower" than the other
    (place, other place, "side")                  neighbours of a column, one clearly "further left" or "further right"
    (place, other place, "overlap")               "covers": the object in front comes first
    ("scene", "objects")                          how many there are, in words
    ("scene", shape, "count")                     how many of a shape of which there are two or more, in words
    ("scene", "background"), ("scene", "light")   the light comes from a side

The slots of a video, whose shots are numbered from 0 and whose times are seconds with one decimal:

    (shot, place, "shape" | "colour" | "size" | "motion")   every object
    (shot, place, "event")                                  only an object to which something happens
    (shot, place, "time")                                   when that happens
    (shot, place, "into")                                   the colour that it changes into
    (shot, "scene", "background"), (shot, "scene", "camera")
    (shot, "scene", "first")                                of two events at different times, the place of the earlier
    ("video", "shots")                                      how many there are, in words
    ("video", "cut 1"), ("video", "cut 2")                  times of the hard cuts
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

Slot = tuple[str | int, ...]
Claim = tuple[Slot, str]
Facts = dict[Slot, str]
"""Slot -> value: at most one answer to each question."""

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "arrow", "crescent")
PLURALS = {shape: f"{shape}es" if shape.endswith("s") else f"{shape}s" for shape in SHAPES}
DIRECTED = ("triangle", "arrow", "crescent")
"""Shapes that point somewhere: a triangle and an arrow with their tip, a crescent with its horns."""
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (214, 34, 40),
    "orange": (250, 125, 15),
    "yellow": (250, 222, 50),
    "green": (45, 160, 65),
    "cyan": (40, 200, 222),
    "blue": (40, 84, 228),
    "purple": (136, 48, 186),
    "pink": (255, 108, 188),
}
SIZES = ("small", "large")
PATTERNS = ("striped", "dotted", "checked")
DIRECTIONS = ("up", "down", "left", "right")
MARKS = ("1", "4", "8", "A", "T", "X")
BACKGROUNDS: Mapping[str, tuple[int, int, int]] = {
    "white": (236, 236, 234),
    "gray": (134, 136, 138),
    "black": (30, 30, 33),
    "brown": (106, 74, 48),
    "navy": (24, 34, 84),
    "beige": (219, 201, 163),
}
LIGHTS = ("left", "right", "above", "below")
LEVELS = ("higher", "lower")
"""The first place of the slot compared with the second."""
SIDES = ("further left", "further right")
OVERLAPS = ("covers",)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

MOTIONS = ("still", "left", "right", "up", "down")
EVENTS = ("appears", "disappears", "changes")
CAMERAS = ("still", "pans left", "pans right", "zooms in")
"""What the camera does is told by the background alone: when it pans right, the background moves left."""

IMAGE_PLACES = tuple(
    f"{row} {column}" for row in ("top", "middle", "bottom") for column in ("left", "center", "right")
)
"""The ninths of a picture in reading order; an object is where its centre lies, and no two are in one place."""
VIDEO_PLACES = tuple(f"{row} {column}" for row in ("top", "bottom") for column in ("left", "right"))
IMAGE_ROWS = tuple(IMAGE_PLACES[3 * row : 3 * row + 3] for row in range(3))
ROW_NEIGHBOURS = tuple(pair for row in IMAGE_ROWS for pair in pairwise(row))
"""(left place, right place): the pairs of which a "level" may be a fact, in this order alone."""
COLUMN_NEIGHBOURS = tuple((IMAGE_PLACES[i], IMAGE_PLACES[i + 3]) for i in range(6))
"""(upper place, lower place): the pairs of which a "side" may be a fact, in this order alone."""
NEIGHBOURS = (("level", ROW_NEIGHBOURS, 1, LEVELS), ("side", COLUMN_NEIGHBOURS, 0, SIDES))
"""What is said of two neighbours: kind, pairs, the axis that decides (0 for x, 1 for y), and the values where the
second one's centre lies further along it and where the first one's does."""
IMAGE_ATTRIBUTES = ("shape", "colour", "size", "pattern", "direction", "mark", "inside")
VIDEO_ATTRIBUTES = ("shape", "colour", "size")
HAPPENINGS = ("event", "time", "into")
"""Kinds of facts of what happens to an object of a clip."""

BACKGROUND: Slot = ("scene", "background")
LIGHT: Slot = ("scene", "light")
OBJECTS: Slot = ("scene", "objects")
CAMERA: Slot = ("scene", "camera")
"""As ``FIRST``, without the shot, which comes first."""
FIRST: Slot = ("scene", "first")
SHOTS: Slot = ("video", "shots")
CUTS: tuple[Slot, ...] = (("video", "cut 1"), ("video", "cut 2"))

VIDEO_FRAMES = 12
VIDEO_FPS = 2
VIDEO_SECONDS = VIDEO_FRAMES / VIDEO_FPS
CHANGE_FRAMES = tuple(range(2, VIDEO_FRAMES, 2))
"""Cuts and events happen at even frames, so that no pair of frames (one temporal patch) straddles one."""
TIMES = tuple(f"{frame / VIDEO_FPS:.1f}" for frame in CHANGE_FRAMES)

VALUES: Mapping[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "colour": tuple(COLOURS),
    "size": SIZES,
    "pattern": PATTERNS,
    "direction": DIRECTIONS,
    "mark": MARKS,
    "inside": tuple(COLOURS),
    "level": LEVELS,
    "side": SIDES,
    "overlap": OVERLAPS,
    "objects": NUMBERS[4:],
    "count": NUMBERS[2:],
    "background": tuple(BACKGROUNDS),
    "light": LIGHTS,
    "motion": MOTIONS,
    "event": EVENTS,
    "time": TIMES,
    "into": tuple(COLOURS),
    "camera": CAMERAS,
    "first": VIDEO_PLACES,
    "shots": NUMBERS[2:4],
    "cut 1": TIMES,
    "cut 2": TIMES,
}
"""What can stand in a slot, by its kind."""
