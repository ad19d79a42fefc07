"""What stands out in a scene to an inattentive eye, by its geometry: whoever sees a scene can learn it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vcap_jax.world.image_facts import layers
from vcap_jax.world.scenes import ImageScene, Scene
from vcap_jax.world.video_facts import seen_frames
from vcap_jax.world.vocabulary import BACKGROUNDS, COLOURS, Slot

FAINT = 125.0
"""RGB distance from the background below which an object does not stand out: six of the 48 pairs of colours."""
HIDDEN = 0.15
"""Share of its area from which on what lies in front of an object makes it inconspicuous."""


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
    distance = float(np.linalg.norm(np.subtract(COLOURS[colour], BACKGROUNDS[background])))
    if size == "small":
        return Look(kind="small", area=area, hidden=hidden)
    if hidden >= HIDDEN:
        return Look(kind="hidden", area=area, hidden=hidden)
    return Look(kind="faint" if distance < FAINT else "standing_out", area=area, hidden=hidden)
