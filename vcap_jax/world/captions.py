"""Full and weak captions of scenes.

A weak caption leaves objects and attributes out and gets some of the rest wrong, as the captions of an
weak captioner do: it is what the tiny backbone learns to write last before reinforcement learning, and what
serves as a weak reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from vcap_jax.world import grammar, video_grammar
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.scenes import (
    BACKGROUNDS,
    COLOURS,
    CUT_FRAMES,
    IMAGE_PLACES,
    MOTIONS,
    SHAPES,
    SIZES,
    VIDEO_FPS,
    VIDEO_PLACES,
    VIDEO_SECONDS,
    Scene,
    VideoScene,
)
from vcap_jax.world.sentences import Facts, Slot

VALUES: Mapping[str, Sequence[str]] = {
    "shape": SHAPES,
    "colour": tuple(COLOURS),
    "size": SIZES,
    "motion": MOTIONS,
    "background": tuple(BACKGROUNDS),
    "cut": tuple(f"{frame / VIDEO_FPS:.1f}" for frame in CUT_FRAMES),
}
"""What can stand in a slot, by its attribute (the last part of the slot)."""


@dataclass(frozen=True, kw_only=True)
class WeakSettings:
    """How weak captions differ from full ones; every value is a probability.

    omit_object: an object is not mentioned at all.
    omit_attribute: an attribute of a mentioned object (or the background, or the cut) is not mentioned.
    wrong_attribute: a mentioned attribute has a wrong value.
    invent_object: an object is described where there is none. References that do so put the places where
        there is nothing to see under observation, too.
    """

    omit_object: float = 0.32
    omit_attribute: float = 0.24
    wrong_attribute: float = 0.03
    invent_object: float = 0.25

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise ValueError(f"{field.name} is a probability, got {value}: choose one from 0 to 1")


def wrong_value(slot: Slot, value: str, rng: np.random.Generator) -> str:
    """A value other than ``value`` that could stand in the slot."""
    others = [other for other in VALUES[str(slot[-1])] if other != value]
    return others[int(rng.integers(len(others)))]


def _invented(facts: Facts, rng: np.random.Generator) -> Facts:
    """An object where the facts have none (in a video: in one of the shots)."""
    video = video_grammar.CUT in facts
    prefix: Slot = (int(rng.integers(2)),) if video else ()
    empty = [
        place for place in (VIDEO_PLACES if video else IMAGE_PLACES) if (*prefix, place, "shape") not in facts
    ]
    place = empty[int(rng.integers(len(empty)))]
    attributes = video_grammar.ATTRIBUTES if video else grammar.ATTRIBUTES
    return {(*prefix, place, attribute): str(rng.choice(VALUES[attribute])) for attribute in attributes}


def weaken(facts: Facts, rng: np.random.Generator, settings: WeakSettings) -> Facts:
    """A weaker version of a scene's facts; never empty as long as ``facts`` is not."""
    objects = {slot[:-1] for slot in facts if slot[-1] == "shape"}
    present = {key for key in sorted(objects, key=repr) if rng.random() >= settings.omit_object}
    weak: Facts = {}
    for slot, value in facts.items():
        owner = slot[:-1]
        if (owner in objects and owner not in present) or rng.random() < settings.omit_attribute:
            continue
        wrong = rng.random() < settings.wrong_attribute
        weak[slot] = wrong_value(slot, value, rng) if wrong else value
    if rng.random() < settings.invent_object:
        weak |= _invented(facts, rng)
    if not weak:
        slots = list(facts)
        kept = slots[int(rng.integers(len(slots)))]
        weak[kept] = facts[kept]
    return weak


def _say(scene: Scene, facts: Facts, rng: np.random.Generator) -> str:
    if not isinstance(scene, VideoScene):
        return grammar.describe_image(facts, rng)
    # The segments follow the cut as the caption has it; one that does not mention it segments rightly.
    cut = float(facts.get(video_grammar.CUT, scene.cut))
    return video_grammar.describe_video(facts, rng, segments=[(0.0, cut), (cut, VIDEO_SECONDS)])


def full_caption(scene: Scene, rng: np.random.Generator) -> str:
    """A caption with every fact of the scene and nothing else."""
    return _say(scene, scene_facts(scene), rng)


def weak_caption(scene: Scene, rng: np.random.Generator, settings: WeakSettings | None = None) -> str:
    """A caption as weak as ``settings`` say; the defaults give coverage 0.5 and hallucination 0.15."""
    return _say(scene, weaken(scene_facts(scene), rng, settings or WeakSettings()), rng)
