"""What a weak captioner tends to say about each fact of a scene: whether at all, and what it takes it for.

Systematic, as habits are. A few objects that stand out (``looks``) are told, with shape, colour and size, and the
background; everything else is told rarely. What looks like something else (``looks.mistaken``) is taken for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.looks import Look, looks, mistaken
from vcap_jax.world.scenes import ImageScene, Scene
from vcap_jax.world.vocabulary import HAPPENINGS, Claim, Facts, Slot

MOST_HABITUAL = 0.45
"""Share of a scene's facts that belongs to the habit, at most, so that there is room for exceptions."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How likely the weak captioner mentions what; every value but the counts is a probability.

    What is likelier than one half belongs to the habit; the rest, and what it lacks, are exceptions.

    most_objects, most_in_a_shot: of a picture, or of a clip's shot, that belong to the habit. least_objects,
        least_in_a_shot: if fewer stand out, the largest of the others are taken with them.
    chosen: an object of the habit is mentioned at all; standing_out, small, hidden, faint: any other is, by its look.
    shape to motion: a fact of a mentioned object is told; size: of a large one, small_size: of a small one.
    event: what happens to an object, mentioned or not; time, into: when, and what colour it takes, if that is told.
    level to cut_2: any one fact of the kind, whatever else is told.
    late_shot: anything is said of a clip's third shot.
    mistake: what looks like something else is told as that.
    """

    most_objects: int = 3
    least_objects: int = 2
    most_in_a_shot: int = 1
    least_in_a_shot: int = 1
    chosen: float = 0.96
    standing_out: float = 0.1
    small: float = 0.04
    hidden: float = 0.08
    faint: float = 0.06
    shape: float = 0.97
    colour: float = 0.97
    size: float = 0.9
    small_size: float = 0.3
    pattern: float = 0.08
    direction: float = 0.1
    mark: float = 0.08
    inside: float = 0.08
    motion: float = 0.9
    event: float = 0.07
    time: float = 0.5
    into: float = 0.5
    level: float = 0.04
    side: float = 0.04
    overlap: float = 0.05
    objects: float = 0.06
    count: float = 0.04
    light: float = 0.05
    background: float = 0.92
    camera: float = 0.06
    first: float = 0.06
    shots: float = 0.92
    cut_1: float = 0.92
    cut_2: float = 0.05
    late_shot: float = 0.08
    mistake: float = 0.93


@dataclass(frozen=True, kw_only=True)
class Inclination:
    """What the captioner tends to say about one fact.

    true: the fact. told: what it is taken for, mostly the same. rate: how likely it is told where all of ``gates`` are
    open. gates: what must be mentioned at all, as (name, probability); one name opens or shuts for a whole text.
    """

    true: Claim
    told: Claim
    rate: float
    gates: tuple[tuple[Slot, float], ...] = ()

    @property
    def likelihood(self) -> float:
        """Of being told."""
        return float(np.prod([self.rate, *(chance for _, chance in self.gates)]))

    @property
    def habitual(self) -> bool:
        return self.likelihood > 0.5


def inclinations(scene: Scene, facts: Facts, habits: Habits) -> tuple[Inclination, ...]:
    """What the captioner tends to say about each fact of a scene; what is no fact is never told.

    facts: the scene's. The habitual ones are at most ``MOST_HABITUAL`` of them: the least likely are left out.
    """
    seen = looks(scene)
    chosen = _chosen(scene, seen, habits)
    taken = mistaken(scene, facts, seen)
    found = [
        Inclination(
            true=(slot, value),
            told=(slot, taken.get(slot, value)),
            rate=_rate(slot, value, habits),
            gates=_gates(slot, seen, chosen, habits),
        )
        for slot, value in facts.items()
    ]
    habitual = sorted((item for item in found if item.habitual), key=lambda item: -item.likelihood)
    surplus = {item.true[0] for item in habitual[int(MOST_HABITUAL * len(facts)) :]}
    return tuple(item for item in found if item.true[0] not in surplus)


def _rate(slot: Slot, value: str, habits: Habits) -> float:
    match slot[-1], value:
        case "event", _:
            return 1.0  # its gate has the rate, for what depends on it
        case "size", "small":
            return habits.small_size
        case kind, _:
            return float(getattr(habits, str(kind).replace(" ", "_")))


def _gates(
    slot: Slot, seen: Mapping[Slot, Look], chosen: frozenset[Slot], habits: Habits
) -> tuple[tuple[Slot, float], ...]:
    """What must be mentioned for a slot to be."""
    gates: list[tuple[Slot, float]] = []
    owner, kind = slot[:-1], slot[-1]
    if slot[0] == _LATE_SHOT:
        gates.append(((_LATE_SHOT,), habits.late_shot))
    if kind in HAPPENINGS:
        gates.append(((*owner, "event"), habits.event))
    elif owner in seen:
        gates.append((owner, habits.chosen if owner in chosen else float(getattr(habits, seen[owner].kind))))
    return tuple(gates)


def _chosen(scene: Scene, seen: Mapping[Slot, Look], habits: Habits) -> frozenset[Slot]:
    """The objects that the habit mentions, of a picture or of each shot: the largest of those that stand out, then of
    the others."""
    image = isinstance(scene, ImageScene)
    most, least = (
        (habits.most_objects, habits.least_objects)
        if image
        else (habits.most_in_a_shot, habits.least_in_a_shot)
    )
    parts: dict[Slot, list[Slot]] = {}
    for owner in sorted(seen, key=lambda one: (seen[one].kind != "standing_out", -seen[one].area)):
        parts.setdefault(owner[:-1], []).append(owner)
    return frozenset(
        owner
        for owners in parts.values()
        for owner in owners[: min(most, max(least, sum(seen[one].kind == "standing_out" for one in owners)))]
    )


_LATE_SHOT = 2
