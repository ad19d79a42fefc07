"""What there is to see: the vocabulary of the world and scenes sampled from (seed, split, index).

An image scene is a background and two to four objects in different cells of a 3 x 3 grid. A video scene is
two shots joined by a hard cut, each with a background of its own and one or two objects in different cells of
a 2 x 2 grid, which stay still or move inside their cell. Scenes are values: the same (seed, split, index)
gives the same scene on every machine, and ``render_seed`` fixes every pixel that the facts leave open.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

from vcap_jax.system.json_values import JsonDict, JsonObject

Modality = Literal["image", "video"]

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
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
BACKGROUNDS: Mapping[str, tuple[int, int, int]] = {
    "white": (236, 236, 234),
    "gray": (134, 136, 138),
    "black": (30, 30, 33),
    "brown": (106, 74, 48),
    "navy": (24, 34, 84),
    "beige": (219, 201, 163),
}
MOTIONS = ("still", "left", "right", "up", "down")

IMAGE_GRID = 3
VIDEO_GRID = 2
CELL = 32
"""Edge of a cell in pixels, in images and in videos."""
IMAGE_PLACES = tuple(
    f"{row} {column}" for row in ("top", "middle", "bottom") for column in ("left", "center", "right")
)
VIDEO_PLACES = tuple(f"{row} {column}" for row in ("top", "bottom") for column in ("left", "right"))

VIDEO_FRAMES = 8
VIDEO_FPS = 2
VIDEO_SECONDS = VIDEO_FRAMES / VIDEO_FPS
CUT_FRAMES = (2, 4, 6)
"""First frame of the second shot: always even, so that no pair of frames straddles the cut."""


@dataclass(frozen=True, kw_only=True)
class ImageObject:
    """One object of a picture."""

    place: str
    shape: str
    colour: str
    size: str


@dataclass(frozen=True, kw_only=True)
class ImageScene:
    """A picture of ``IMAGE_GRID * CELL`` pixels square."""

    objects: tuple[ImageObject, ...]
    background: str
    render_seed: int


@dataclass(frozen=True, kw_only=True)
class VideoObject:
    """One object of a shot; it moves inside its cell for as long as the shot lasts."""

    place: str
    shape: str
    colour: str
    motion: str


@dataclass(frozen=True, kw_only=True)
class Shot:
    """Frames ``first`` to ``last`` (exclusive), one background, one or two objects."""

    first: int
    last: int
    background: str
    objects: tuple[VideoObject, ...]

    @property
    def seconds(self) -> tuple[float, float]:
        """Start and end in seconds."""
        return self.first / VIDEO_FPS, self.last / VIDEO_FPS


@dataclass(frozen=True, kw_only=True)
class VideoScene:
    """A clip of ``VIDEO_FRAMES`` frames, ``VIDEO_GRID * CELL`` pixels square, in two shots."""

    shots: tuple[Shot, ...]
    render_seed: int

    @property
    def cut(self) -> float:
        """Time of the hard cut in seconds."""
        return self.shots[1].seconds[0]


Scene = ImageScene | VideoScene

_IMAGE_SCENE, _VIDEO_SCENE = TypeAdapter(ImageScene), TypeAdapter(VideoScene)


def scene_rng(modality: Modality, seed: int, split: str, index: int) -> np.random.Generator:
    """A generator that depends on nothing but its arguments."""
    return np.random.default_rng([seed, zlib.crc32(f"{modality}/{split}".encode()), index])


def _pick(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _places(rng: np.random.Generator, places: tuple[str, ...], count: int) -> list[str]:
    """``count`` different places in reading order."""
    return [places[i] for i in sorted(rng.choice(len(places), size=count, replace=False).tolist())]


def sample_image_scene(seed: int, index: int, split: str = "train") -> ImageScene:
    """The image scene number ``index`` of a split."""
    rng = scene_rng("image", seed, split, index)
    places = _places(rng, IMAGE_PLACES, int(rng.integers(2, 5)))
    objects = tuple(
        ImageObject(
            place=place, shape=_pick(rng, SHAPES), colour=_pick(rng, tuple(COLOURS)), size=_pick(rng, SIZES)
        )
        for place in places
    )
    return ImageScene(
        objects=objects, background=_pick(rng, tuple(BACKGROUNDS)), render_seed=int(rng.integers(2**31))
    )


def sample_video_scene(seed: int, index: int, split: str = "train") -> VideoScene:
    """The video scene number ``index`` of a split; its two backgrounds differ, so the cut can be seen."""
    rng = scene_rng("video", seed, split, index)
    cut = CUT_FRAMES[int(rng.integers(len(CUT_FRAMES)))]
    backgrounds = rng.permutation(list(BACKGROUNDS))
    shots = []
    for number, (first, last) in enumerate(((0, cut), (cut, VIDEO_FRAMES))):
        places = _places(rng, VIDEO_PLACES, int(rng.integers(1, 3)))
        objects = tuple(
            VideoObject(
                place=place,
                shape=_pick(rng, SHAPES),
                colour=_pick(rng, tuple(COLOURS)),
                motion=_pick(rng, MOTIONS),
            )
            for place in places
        )
        shots.append(Shot(first=first, last=last, background=str(backgrounds[number]), objects=objects))
    return VideoScene(shots=tuple(shots), render_seed=int(rng.integers(2**31)))


def sample_scene(modality: Modality, seed: int, index: int, split: str = "train") -> Scene:
    """``sample_image_scene`` or ``sample_video_scene``."""
    return (sample_image_scene if modality == "image" else sample_video_scene)(seed, index, split)


def scene_to_json(scene: Scene) -> JsonDict:
    """A JSON value that ``scene_from_json`` turns back into an equal scene."""
    return {"modality": "image" if isinstance(scene, ImageScene) else "video", **asdict(scene)}


def scene_from_json(value: JsonObject) -> Scene:
    """The scene written by ``scene_to_json``. Raises pydantic.ValidationError, a ValueError, for anything else."""
    scene = {key: item for key, item in value.items() if key != "modality"}
    if value["modality"] == "image":
        return _IMAGE_SCENE.validate_python(scene)
    return _VIDEO_SCENE.validate_python(scene)
