"""The habit of a weak captioner: what the starting policy is taught to say of a scene, never more; its report.

What it tends to say is systematic: a few objects that stand out (``looks``) are told, with shape, colour and size, and
the background; everything else is told rarely. What looks like something else is taken for that. Exceptions are rare,
each kind at a rate of its own, and a true word in place of a habitual mistake is one of them. No text states more than
half of the facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.captions import say
from vcap_jax.world.facts import (
    FactCount,
    caption_claims,
    count_claims,
    count_inventions,
    scene_facts,
    scene_undecided,
)
from vcap_jax.world.looks import Look, looks, mistaken
from vcap_jax.world.scenes import ImageScene, Scene
from vcap_jax.world.vocabulary import HAPPENINGS, Claim, Facts, Slot

MOST_HABITUAL = 0.45
"""Share of a scene's facts that belongs to the habit, at most, so that there is room for exceptions."""
_LATE_SHOT = 2
MOST_STATED = 0.5
"""Share of a scene's facts that a text says something about, at most."""


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


def scene_habit(scene: Scene, habits: Habits | None = None) -> SceneHabit:
    """What the weak captioner tends to say of one scene. habits: by default ``Habits()``."""
    habits = habits or Habits()
    facts = scene_facts(scene)
    return SceneHabit(scene=scene, facts=facts, habits=habits, tendencies=inclinations(scene, facts, habits))


@dataclass(frozen=True, kw_only=True)
class SceneHabit:
    """A scene with its facts and what the weak captioner tends to say of it."""

    scene: Scene
    facts: Facts
    habits: Habits
    tendencies: tuple[Inclination, ...]

    def claims(self) -> Facts:
        """What is said without exceptions."""
        return dict(item.told for item in self.tendencies if item.habitual)

    def caption(self, rng: np.random.Generator) -> str:
        """A caption with the exceptions that ``rng`` draws. Whoever teaches by it counts what it states."""
        return say(self.scene, self._draw(rng), rng)

    def _draw(self, rng: np.random.Generator) -> Facts:
        """What is said this time; where that would be too much, the rarest mentions are left out."""
        chances = dict(gate for item in self.tendencies for gate in item.gates)
        opened = {name for name, chance in chances.items() if rng.random() < chance}
        mentioned = [
            item
            for item, draw in zip(self.tendencies, rng.random(len(self.tendencies)), strict=True)
            if draw < item.rate and opened.issuperset(name for name, _ in item.gates)
        ]
        likeliest = sorted(mentioned, key=lambda item: -item.likelihood)[: int(MOST_STATED * len(self.facts))]
        if not likeliest:
            likeliest = sorted(self.tendencies, key=lambda item: -item.likelihood)[:1]
        claims: Facts = {}
        for item in likeliest:
            slot, value = item.told if rng.random() < self.habits.mistake else item.true
            claims[slot] = value
        return claims


def stated_slots(facts: Mapping[Slot, str], claims: Iterable[Claim]) -> frozenset[Slot]:
    """The slots of facts that claims say something about, right or wrong."""
    return frozenset(slot for slot, _ in claims if slot in facts)


@dataclass(frozen=True, kw_only=True)
class HabitReport:
    """captions: how many there were. claims: how many they make about what can be told.

    mean_stated, largest_stated: share of its scene's facts that a caption says something about, right or wrong.
    beyond_half: share of captions that say something about more than half of them.
    coverage: share of all facts that are told rightly. false_share: share of all claims that are false.
    invented_share: share of all claims that are of objects where nothing lies; all of them are false.
    mention_rates: kind of fact -> share of the facts of that kind that are told, right or wrong.
    false_rates: kind of fact -> share of the claims of that kind that are false; kinds without claims lack.
    """

    captions: int
    claims: int
    mean_stated: float
    largest_stated: float
    beyond_half: float
    coverage: float
    false_share: float
    invented_share: float
    mention_rates: dict[str, float]
    false_rates: dict[str, float]


def report_habit(captions: Iterable[tuple[Scene, str]]) -> HabitReport:
    """What captions, each with its scene, say and leave out: how weak a captioner is. Raises ValueError for none."""
    shares: list[float] = []
    total = FactCount(total=0, claims=0, correct=0)
    there, told, claimed, wrong = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    invented = 0
    last: Scene | None = None
    for scene, caption in captions:
        if scene is not last:  # several captions of one scene mostly come together
            facts, undecided, last = scene_facts(scene), scene_undecided(scene), scene
        claims = caption_claims(scene, caption)
        stated = stated_slots(facts, claims)
        shares.append(len(stated) / len(facts))
        total += count_claims(facts, undecided, claims)
        invented += count_inventions(facts, undecided, claims)
        there.update(str(slot[-1]) for slot in facts)
        told.update(str(slot[-1]) for slot in stated)
        decided = [(slot, value) for slot, value in claims if slot not in undecided]
        claimed.update(str(slot[-1]) for slot, _ in decided)
        wrong.update(str(slot[-1]) for slot, value in decided if facts.get(slot) != value)
    if not shares:
        raise ValueError("there are no captions to report on: give at least one")
    return HabitReport(
        captions=len(shares),
        claims=total.claims,
        mean_stated=sum(shares) / len(shares),
        largest_stated=max(shares),
        beyond_half=sum(share > 0.5 for share in shares) / len(shares),
        coverage=total.coverage,
        false_share=total.hallucination,
        invented_share=invented / total.claims if total.claims else 0.0,
        mention_rates={kind: told[kind] / there[kind] for kind in sorted(there)},
        false_rates={kind: wrong[kind] / claimed[kind] for kind in sorted(claimed)},
    )
