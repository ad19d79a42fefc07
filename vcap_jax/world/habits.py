"""The habit of a weak captioner: what the starting policy is taught to say of a scene, never more; its report.

What it tends to say follows from how the scene looks (``inclinations``). Exceptions are rare, each kind at a rate of
its own, and a true word in place of a habitual mistake is one of them. No text states more than half of the facts.
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
from vcap_jax.world.inclinations import Habits, Inclination, inclinations
from vcap_jax.world.scenes import Scene
from vcap_jax.world.vocabulary import Claim, Facts, Slot

MOST_STATED = 0.5
"""Share of a scene's facts that a text says something about, at most."""


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
