"""Questions that teach sight, and test it: about everything there is to see in a scene, and about what it lacks.

Beside the facts these ask for what is not there: whether a place holds anything, and where an object has no pattern,
no mark, no event, where two neighbours are level and nobody covers anybody, the answer is "none". Nothing is asked that
the pixels leave open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.facts import scene_facts, scene_undecided
from vcap_jax.world.questions import WORDINGS, answer_of, options_of, question, when
from vcap_jax.world.scenes import ImageScene, Scene, VideoScene
from vcap_jax.world.slots import question_of
from vcap_jax.world.vocabulary import (
    COLUMN_NEIGHBOURS,
    CUTS,
    IMAGE_PLACES,
    NUMBERS,
    ROW_NEIGHBOURS,
    SHAPES,
    VIDEO_PLACES,
    Facts,
    Slot,
)

NONE = "none"
"""The answer where a slot is empty."""
PRESENCE = "presence"
"""The kind of the questions whether a place holds anything."""
YES_NO = ("yes", "no")
PRESENCE_FORMS = (
    "Is there something at the {place}{when}?",
    "Is anything at the {place}{when}?",
    "Something at the {place}{when}?",
)
_MAY_LACK = ("pattern", "mark", "inside", "level", "side", "overlap", "event", "cut 2")
"""Kinds whose slots may be empty where they are asked about."""
SIGHT_KINDS = (
    *("shape", "colour", "size", "pattern", "direction", "mark", "inside", "level", "side", "overlap"),
    *("objects", "count", "background", "light", "motion", "event", "time", "into", "camera", "first"),
    *("shots", "cut 1", "cut 2", PRESENCE),
)


@dataclass(frozen=True, kw_only=True)
class SightQuestion:
    """A question about a scene. kind: of the fact. slot: what it asks about; of presence, the owner with that kind.

    Whoever teaches the answer puts a space before it: then its tokens are those of the words inside a caption.
    """

    kind: str
    slot: Slot
    text: str
    options: tuple[str, ...]
    answer: str


def sight_questions(scene: Scene, rng: np.random.Generator) -> list[SightQuestion]:
    """All questions about a scene, each once, in an order that depends on the scene alone; ``rng`` words them."""
    facts, undecided = scene_facts(scene), scene_undecided(scene)
    asked: dict[Slot, str] = {}
    for slot, value in facts.items():
        asked[question_of(slot)] = answer_of(slot, value)
    empty = _image_slots(scene, facts) if isinstance(scene, ImageScene) else _video_slots(scene)
    for slot, answer in empty:
        if not undecided & {slot, (slot[1], slot[0], *slot[2:])}:
            asked.setdefault(question_of(slot), answer)
    found = [_ask(scene, slot, answer, int(rng.integers(WORDINGS))) for slot, answer in asked.items()]
    return found + [_presence(scene, owner, there, rng) for owner, there in _places(scene, facts)]


def _ask(scene: Scene, slot: Slot, answer: str, wording: int) -> SightQuestion:
    kind = str(slot[-1])
    options = options_of(slot)
    if kind == "count":
        options = NUMBERS
    if kind in _MAY_LACK:
        options = (*options, NONE)
    return SightQuestion(
        kind=kind, slot=slot, text=question(scene, slot, wording), options=options, answer=answer
    )


def _image_slots(scene: ImageScene, facts: Facts) -> Iterator[tuple[Slot, str]]:
    """Slots that may be empty, with the answer where they are."""
    shapes = {thing.place: facts.get((thing.place, "shape")) for thing in scene.objects}
    for place, shape in shapes.items():
        yield (place, "pattern"), NONE
        yield (place, "mark"), NONE
        if shape == "ring":
            yield (place, "inside"), NONE
    for pairs, kind in ((ROW_NEIGHBOURS, "level"), (COLUMN_NEIGHBOURS, "side"), (_ADJACENT, "overlap")):
        for one, other in pairs:
            if one in shapes and other in shapes:
                yield (one, other, kind), NONE
    if None not in shapes.values():
        told = list(shapes.values())
        for shape in SHAPES:
            yield ("scene", shape, "count"), NUMBERS[told.count(shape)]


def _video_slots(scene: VideoScene) -> Iterator[tuple[Slot, str]]:
    for index, shot in enumerate(scene.shots):
        for thing in shot.objects:
            yield (index, thing.place, "event"), NONE
    yield CUTS[1], NONE


def _adjacent(one: str, other: str) -> bool:
    (a, b), (c, d) = (divmod(IMAGE_PLACES.index(place), 3) for place in (one, other))
    return max(abs(a - c), abs(b - d)) == 1


_ADJACENT = tuple(
    (one, other)
    for k, one in enumerate(IMAGE_PLACES)
    for other in IMAGE_PLACES[k + 1 :]
    if _adjacent(one, other)
)
"""Pairs of places that touch, in reading order."""


def _places(scene: Scene, facts: Facts) -> Iterable[tuple[Slot, bool]]:
    """Every place, as the owner of slots, with whether something is there. One of which nothing can be told is left."""
    if isinstance(scene, ImageScene):
        owners: list[Slot] = [(place,) for place in IMAGE_PLACES]
        filled: set[Slot] = {(thing.place,) for thing in scene.objects}
    else:
        owners = [(index, place) for index in range(len(scene.shots)) for place in VIDEO_PLACES]
        filled = {(index, thing.place) for index, shot in enumerate(scene.shots) for thing in shot.objects}
    for owner in owners:
        if owner not in filled or (*owner, "colour") in facts:
            yield owner, owner in filled


def _presence(scene: Scene, owner: Slot, there: bool, rng: np.random.Generator) -> SightQuestion:
    form = PRESENCE_FORMS[int(rng.integers(len(PRESENCE_FORMS)))]
    span = scene.shots[int(owner[0])].seconds if isinstance(scene, VideoScene) else None
    return SightQuestion(
        kind=PRESENCE,
        slot=(*owner, PRESENCE),
        text=form.format(place=owner[-1], when=when(span)),
        options=YES_NO,
        answer=YES_NO[not there],
    )
