"""Facts that can be said, whether or not a scene could have them together.

What a grammar has to put into words and what a tokenizer must know is any subset of these.
"""

from __future__ import annotations

import numpy as np

from vcap_jax.world.scenes import pick
from vcap_jax.world.things import IMAGE_ATTRIBUTES, VIDEO_ATTRIBUTES
from vcap_jax.world.vocabulary import (
    BACKGROUND,
    COLUMN_NEIGHBOURS,
    CUTS,
    IMAGE_PLACES,
    LIGHT,
    OBJECTS,
    ROW_NEIGHBOURS,
    SHAPES,
    SHOTS,
    VALUES,
    VIDEO_PLACES,
    Facts,
    Slot,
)

IMAGE_SLOTS: tuple[Slot, ...] = (
    *((place, kind) for place in IMAGE_PLACES for kind in IMAGE_ATTRIBUTES),
    *((*pair, "level") for pair in ROW_NEIGHBOURS),
    *((*pair, "side") for pair in COLUMN_NEIGHBOURS),
    *((one, other, "overlap") for one in IMAGE_PLACES for other in IMAGE_PLACES if one != other),
    OBJECTS,
    *(("scene", shape, "count") for shape in SHAPES),
    LIGHT,
    BACKGROUND,
)
"""All slots of images."""


def video_slots(shots: int) -> tuple[Slot, ...]:
    """All slots of videos of so many shots."""
    kinds = (*VIDEO_ATTRIBUTES, "motion", "event", "time", "into")
    inside = [(place, kind) for place in VIDEO_PLACES for kind in kinds]
    inside += [("scene", kind) for kind in ("first", "camera", "background")]
    return (*((shot, *slot) for shot in range(shots) for slot in inside), SHOTS, *CUTS)


def sayable_facts(slots: tuple[Slot, ...], share: float, rng: np.random.Generator) -> Facts:
    """A random value in each slot of a random choice of ``slots``: ``share`` of them on average."""
    chosen = rng.random(len(slots)) < share
    facts: Facts = {}
    for slot, taken in zip(slots, chosen.tolist(), strict=True):
        if taken:
            facts[slot] = pick(rng, VALUES[str(slot[-1])])
    return facts
