"""Full and weak captions of scenes, for tests, probes and benchmarks: no policy is taught to write either.

A weak caption leaves objects and attributes out at random and gets some of the rest wrong. What the starting policy
learns to write is another thing, a habit (``habits``). Beside them stand facts that can be said, whether or not a scene
could have them together: a grammar has to put any of these into words, and a tokenizer must know them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_grammar import describe_image
from vcap_jax.world.scenes import Scene, VideoScene, pick, places_of
from vcap_jax.world.video_grammar import describe_video
from vcap_jax.world.vocabulary import IMAGE_PLACES, VALUES, VIDEO_ATTRIBUTES, Facts, Slot


@dataclass(frozen=True, kw_only=True)
class WeakSettings:
    """How weak captions differ from full ones; every value is a probability.

    omit_object: an object is not mentioned at all, nor what stands between it and others.
    omit_fact: a fact about what is mentioned, or about the whole, is left out.
    wrong_fact: a fact that is told has a wrong value.
    invent_object: an object is described where there is none. References that do so put the places where there is
        nothing to see under observation, too.
    """

    omit_object: float = 0.32
    omit_fact: float = 0.24
    wrong_fact: float = 0.1
    invent_object: float = 0.25


def wrong_value(slot: Slot, value: str, rng: np.random.Generator) -> str:
    """A value other than ``value`` that could stand in the slot. Raises ValueError for a slot that has only one."""
    others = [other for other in VALUES[str(slot[-1])] if other != value]
    if not others:
        raise ValueError(f"{slot!r} has no other value than {value!r}")
    return pick(rng, others)


def wrong_claim(slot: Slot, value: str, rng: np.random.Generator) -> tuple[Slot, str]:
    """A claim that contradicts the slot's value: another value, or the two objects the other way round."""
    if slot[-1] == "overlap":
        one, other, kind = slot
        return (other, one, kind), value
    return slot, wrong_value(slot, value, rng)


def weaken(scene: Scene, facts: Facts, rng: np.random.Generator, settings: WeakSettings) -> Facts:
    """A weaker version of a scene's facts; never empty as long as ``facts`` is not."""
    owners = sorted({slot[:-1] for slot in facts if slot[-1] == "shape"}, key=repr)
    silent = {owner for owner in owners if rng.random() < settings.omit_object}
    weak: Facts = {}
    for slot, value in facts.items():
        if _objects_of(slot) & silent or rng.random() < settings.omit_fact:
            continue
        if rng.random() < settings.wrong_fact:
            slot, value = wrong_claim(slot, value, rng)
        weak[slot] = value
    if rng.random() < settings.invent_object:
        weak |= _invented(scene, rng)
    if not weak:
        slots = list(facts)
        kept = pick(rng, slots)
        weak[kept] = facts[kept]
    return weak


def full_caption(scene: Scene, rng: np.random.Generator) -> str:
    """A caption with every fact of the scene and nothing else."""
    return say(scene, scene_facts(scene), rng)


def weak_caption(scene: Scene, rng: np.random.Generator, settings: WeakSettings | None = None) -> str:
    """A caption as weak as ``settings`` say, by default ``WeakSettings()``."""
    return say(scene, weaken(scene, scene_facts(scene), rng, settings or WeakSettings()), rng)


def say(scene: Scene, facts: Facts, rng: np.random.Generator) -> str:
    """Facts, true or not, as a caption of the scene; a clip's segments are its shots."""
    if isinstance(scene, VideoScene):
        return describe_video(facts, rng, segments=[shot.seconds for shot in scene.shots])
    return describe_image(facts, rng)


def _objects_of(slot: Slot) -> set[Slot]:
    """The owners, as in the slots of their shapes, of the objects that a slot is about."""
    shot, inside = ((slot[0],), slot[1:]) if isinstance(slot[0], int) else ((), slot)
    return {(*shot, place) for place in inside[:-1] if place in IMAGE_PLACES}


def _invented(scene: Scene, rng: np.random.Generator) -> Facts:
    """Shape, colour and size of an object where there is none, if there is such a place."""
    filled: set[Slot]
    if isinstance(scene, VideoScene):
        filled = {(index, thing.place) for index, shot in enumerate(scene.shots) for thing in shot.objects}
    else:
        filled = {(thing.place,) for thing in scene.objects}
    empty = [owner for owner in places_of(scene) if owner not in filled]
    if not empty:
        return {}
    owner = pick(rng, empty)
    return {(*owner, kind): pick(rng, VALUES[kind]) for kind in VIDEO_ATTRIBUTES}


def sayable_facts(slots: tuple[Slot, ...], share: float, rng: np.random.Generator) -> Facts:
    """A random value in each slot of a random choice of ``slots``: ``share`` of them on average."""
    chosen = rng.random(len(slots)) < share
    facts: Facts = {}
    for slot, taken in zip(slots, chosen.tolist(), strict=True):
        if taken:
            facts[slot] = pick(rng, VALUES[str(slot[-1])])
    return facts
