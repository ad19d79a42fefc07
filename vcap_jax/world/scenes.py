"""Scenes as values: everything that a picture or a clip is drawn from.

An image scene has four to nine objects at free positions, at most one in each ninth of the picture. A video scene has
two or three shots joined by hard cuts, each with a background and a camera of its own and one to three objects in
different quarters. Geometry is part of the scene, in pixels; ``render_seed`` fixes what the facts and the geometry
leave open (tints, texture, grain).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

import numpy as np
from pydantic import TypeAdapter

from vcap_jax.system.json_values import JsonDict, JsonObject
from vcap_jax.world.vocabulary import IMAGE_PLACES, VIDEO_FPS, VIDEO_PLACES, Slot

T = TypeVar("T")
Modality = Literal["image", "video"]

IMAGE_EDGE = 128
"""Pixels of a picture's side."""
VIDEO_EDGE = 96
"""Pixels of a clip's side."""


@dataclass(frozen=True, kw_only=True)
class ImageObject:
    """One object of a picture. The values None mean that it has none.

    centre: (x, y) in pixels of the picture. extent: edge in pixels of the box around the shape before it is turned.
    tilt: radians by which it is turned besides its direction. Objects are drawn in the order of the scene: a later one
    lies in front of an earlier one.
    """

    place: str
    shape: str
    colour: str
    size: str
    pattern: str | None
    direction: str | None
    mark: str | None
    inside: str | None
    centre: tuple[float, float]
    extent: float
    tilt: float


@dataclass(frozen=True, kw_only=True)
class ImageScene:
    """A picture of ``IMAGE_EDGE`` pixels square. light: the side that it comes from."""

    objects: tuple[ImageObject, ...]
    background: str
    light: str
    render_seed: int


@dataclass(frozen=True, kw_only=True)
class VideoObject:
    """One object of a shot; it moves inside its quarter for as long as the shot lasts.

    event, at (frame of the clip, even, inside the shot), into (a colour): None where nothing happens.
    start: centre in the shot's first frame. step: (x, y) pixels that it moves per frame, (0, 0) if it is still.
    """

    place: str
    shape: str
    colour: str
    size: str
    motion: str
    event: str | None
    at: int | None
    into: str | None
    start: tuple[float, float]
    step: tuple[float, float]
    extent: float
    tilt: float

    def colour_at(self, frame: int) -> str:
        """Its colour in a frame of the clip."""
        if self.into is not None and self.at is not None and frame >= self.at:
            return self.into
        return self.colour


@dataclass(frozen=True, kw_only=True)
class Shot:
    """Frames ``first`` to ``last`` (exclusive), both even."""

    first: int
    last: int
    background: str
    camera: str
    objects: tuple[VideoObject, ...]

    @property
    def seconds(self) -> tuple[float, float]:
        """Start and end in seconds."""
        return self.first / VIDEO_FPS, self.last / VIDEO_FPS


@dataclass(frozen=True, kw_only=True)
class VideoScene:
    """A clip of ``VIDEO_FRAMES`` frames, ``VIDEO_EDGE`` pixels square, in two or three shots."""

    shots: tuple[Shot, ...]
    render_seed: int


Scene = ImageScene | VideoScene

_IMAGE_SCENE, _VIDEO_SCENE = TypeAdapter(ImageScene), TypeAdapter(VideoScene)


def places_of(scene: Scene) -> tuple[Slot, ...]:
    """All places of a picture, (place,), or of a clip's shots, (shot, place)."""
    if isinstance(scene, ImageScene):
        return tuple((place,) for place in IMAGE_PLACES)
    return tuple((shot, place) for shot in range(len(scene.shots)) for place in VIDEO_PLACES)


def scene_rng(modality: Modality, seed: int, split: str, index: int) -> np.random.Generator:
    """A generator that depends on nothing but its arguments, on any machine."""
    return np.random.default_rng([seed, zlib.crc32(f"{modality}/{split}".encode()), index])


def pick(rng: np.random.Generator, values: Sequence[T]) -> T:
    """One of the values, all alike."""
    return values[int(rng.integers(len(values)))]


def scene_to_json(scene: Scene) -> JsonDict:
    """A JSON value that ``scene_from_json`` turns back into an equal scene."""
    return {"modality": "image" if isinstance(scene, ImageScene) else "video", **asdict(scene)}


def scene_from_json(value: JsonObject) -> Scene:
    """The scene written by ``scene_to_json``. Raises ValueError for anything else, naming what does not fit."""
    modality = value.get("modality")
    scene = {key: item for key, item in value.items() if key != "modality"}
    if modality == "image":
        return _IMAGE_SCENE.validate_python(scene)
    if modality == "video":
        return _VIDEO_SCENE.validate_python(scene)
    raise ValueError(f'the "modality" of a scene is "image" or "video", not {modality!r}')
