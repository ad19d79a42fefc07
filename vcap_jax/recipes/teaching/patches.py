"""Which object fills each patch of a view: labels for the probes of single patches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vcap_jax.world.backbone import IMAGE_SETTINGS
from vcap_jax.world.drawing import shape_patch
from vcap_jax.world.image_facts import layers
from vcap_jax.world.scenes import VIDEO_EDGE, ImageScene, Scene, VideoObject, VideoScene
from vcap_jax.world.video_facts import seen_frames
from vcap_jax.world.vocabulary import (
    COLOURS,
    DIRECTIONS,
    MARKS,
    MOTIONS,
    PATTERNS,
    SHAPES,
    SIZES,
    VIDEO_FRAMES,
)

NOTHING, WITHOUT = "nothing", "without"
"""What fills a patch where no object does; what an object has that lacks the attribute."""
PATCH_PROBES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "image": {
        "shape": (NOTHING, *SHAPES),
        "colour": (NOTHING, *COLOURS),
        "size": (NOTHING, *SIZES),
        "pattern": (NOTHING, WITHOUT, *PATTERNS),
        "direction": (NOTHING, WITHOUT, *DIRECTIONS),
        "mark": (NOTHING, WITHOUT, *MARKS),
    },
    "video": {
        "shape": (NOTHING, *SHAPES),
        "colour": (NOTHING, *COLOURS),
        "size": (NOTHING, *SIZES),
        "motion": (NOTHING, *MOTIONS),
    },
}
"""What is asked of a patch, and the answers, by modality."""
_FILLED = 48
"""Pixels of a patch's 256 that an object has, at least, where it fills it."""


def patch_targets(scene: Scene) -> dict[str, np.ndarray]:
    """The right answers: by probe, int32 [views, patches], patches in the order of the vision tower."""
    if isinstance(scene, ImageScene):
        views = [(layers(scene).front, [_values(vars(item)) for item in scene.objects])]
        return _answers("image", views)
    return _answers("video", [_pair(scene, first) for first in range(0, VIDEO_FRAMES, 2)])


def _values(attributes: Mapping[str, object]) -> dict[str, str]:
    """Of an object, the values of all that a patch may be asked for."""
    return {key: WITHOUT if value is None else str(value) for key, value in attributes.items()}


def _answers(modality: str, views: list[tuple[np.ndarray, list[dict[str, str]]]]) -> dict[str, np.ndarray]:
    """views: in each, the index of the object in front at each pixel (-1 for none), and the objects' values."""
    filled = [fills(front, len(objects)) for front, objects in views]
    found = {}
    for name, values in PATCH_PROBES[modality].items():
        rows = []
        for owners, (_, objects) in zip(filled, views, strict=True):
            answers = np.array(
                [values.index(NOTHING), *(values.index(own[name]) for own in objects)], np.int32
            )
            rows.append(answers[owners + 1])
        found[name] = np.stack(rows)
    return found


def fills(front: np.ndarray, objects: int) -> np.ndarray:
    """The object that fills each patch, -1 for none: [patches], those of one visual token beside each other.

    front: [H, W], the object in front at each pixel.
    """
    size, merge = IMAGE_SETTINGS.patch_size, IMAGE_SETTINGS.merge_size
    rows, columns = (edge // (size * merge) for edge in front.shape)
    blocks = front.reshape(rows, merge, size, columns, merge, size).transpose(0, 3, 1, 4, 2, 5)
    pixels = blocks.reshape(rows * columns * merge**2, -1)
    counts = np.stack([(pixels == index).sum(1) for index in range(objects)], 1)
    return np.where(counts.max(1) >= _FILLED, counts.argmax(1), -1)


def _pair(scene: VideoScene, first: int) -> tuple[np.ndarray, list[dict[str, str]]]:
    """A pair of frames, its objects where they are in the middle between both."""
    shot = next(shot for shot in scene.shots if shot.first <= first < shot.last)
    front = np.full((VIDEO_EDGE, VIDEO_EDGE), -1)
    objects = []
    for thing in shot.objects:
        turned = thing.into is not None and thing.at is not None and first >= thing.at
        objects.append({**_values(vars(thing)), "colour": str(thing.into) if turned else thing.colour})
        if first in seen_frames(shot, thing):
            _put(front, thing, first - shot.first + 0.5, len(objects) - 1)
    return front, objects


def _put(front: np.ndarray, thing: VideoObject, frames: float, index: int) -> None:
    """Puts an object where it is so many frames after its shot began."""
    x, y = (start + frames * step for start, step in zip(thing.start, thing.step, strict=True))
    top, left, coverage = shape_patch(thing.shape, (x, y), thing.extent, thing.tilt, None)
    rows, columns = np.nonzero(coverage >= 0.5)
    rows, columns = rows + top, columns + left
    inside = (rows >= 0) & (columns >= 0) & (rows < front.shape[0]) & (columns < front.shape[1])
    front[rows[inside], columns[inside]] = index
