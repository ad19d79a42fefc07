"""What the policy is asked: short questions about one thing, each with its true answer.

A question is about one fact ("What colour is at the top left?"), answered by a word, or about one place ("What is at
the top left?"), answered by the sentences with which a caption would tell of it. How many facts an answer states is
known, so that it can be counted that none states more than half of a scene's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vcap_jax.world.image_grammar import say_image
from vcap_jax.world.questions import WORDINGS, answer_of, question
from vcap_jax.world.scenes import ImageScene, Scene, VideoScene, pick
from vcap_jax.world.sentences import capitalised, draw_wording
from vcap_jax.world.video_grammar import say_shot
from vcap_jax.world.vocabulary import (
    IMAGE_ATTRIBUTES,
    IMAGE_PLACES,
    VIDEO_ATTRIBUTES,
    VIDEO_PLACES,
    Facts,
    Slot,
)

NOTHING = "Nothing."
"""The answer to the question what is at a place where nothing is."""
_WHAT = (
    "What is at the {place}{when}?",
    "What does the {place} show{when}?",
    "What about the {place}{when}?",
)
_HAPPENING = ("motion", "event", "time", "into")


class Lesson(NamedTuple):
    """kind: of the fact that is asked for, "thing" where it is a place. states: facts that the answer tells."""

    kind: str
    question: str
    answer: str
    states: int


def fact_lesson(
    scene: Scene, facts: Facts, slot: Slot, rng: np.random.Generator, *, terse: bool = False
) -> Lesson:
    """The question about one of the scene's facts, in a wording that ``rng`` draws; the shortest one if ``terse``."""
    asked = question(scene, slot, WORDINGS - 1 if terse else int(rng.integers(WORDINGS)))
    return Lesson(str(slot[-1]), asked, answer_of(slot, facts[slot]), 1)


def places_of(scene: Scene) -> tuple[Slot, ...]:
    """All places of a picture, or of a clip's shots."""
    if isinstance(scene, ImageScene):
        return tuple((place,) for place in IMAGE_PLACES)
    return tuple((shot, place) for shot in range(len(scene.shots)) for place in VIDEO_PLACES)


def place_lesson(scene: Scene, facts: Facts, owner: Slot, rng: np.random.Generator) -> Lesson:
    """The question about one of ``places_of``, answered in a wording that ``rng`` draws."""
    kinds: Sequence[str] = (
        IMAGE_ATTRIBUTES if isinstance(scene, ImageScene) else (*VIDEO_ATTRIBUTES, *_HAPPENING)
    )
    place, when = str(owner[-1]), ""
    if isinstance(scene, VideoScene):
        start, end = scene.shots[int(owner[0])].seconds
        when = f" from {start:.1f} to {end:.1f} seconds"
    asked = pick(rng, _WHAT).format(place=place, when=when)
    wording = draw_wording(rng)
    told: Facts = {(place, kind): facts[*owner, kind] for kind in kinds if (*owner, kind) in facts}
    if not told:
        return Lesson("thing", asked, NOTHING, 0)
    said = say_image(told, wording) if isinstance(scene, ImageScene) else say_shot(told, wording)
    return Lesson("thing", asked, " ".join(map(capitalised, said)), len(told))
