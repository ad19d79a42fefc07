"""The habit of a weak captioner: what the starting policy is taught to say of a scene, never more.

What it tends to say follows from how the scene looks (``inclinations``). Exceptions are rare, each kind at a rate of
its own, and a true word in place of a habitual mistake is one of them. No text states more than half of the facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.captions import say
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.inclinations import Habits, Inclination, inclinations
from vcap_jax.world.scenes import Scene
from vcap_jax.world.vocabulary import Claim, Facts, Slot

MOST_STATED = 0.5
"""Share of a scene's facts that a text says something about, at most."""


def scene_habit(scene: Scene, habits: Habits | None = None) -> SceneHabit:
    """What the weak captioner tends to say of one scene. habits: its settings, by default ``Habits()``."""
    chosen = habits or Habits()
    facts = scene_facts(scene)
    return SceneHabit(scene=scene, facts=facts, habits=chosen, tendencies=inclinations(scene, facts, chosen))


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
        """A caption with the exceptions that ``rng`` draws.

        Raises RuntimeError if it stated more than ``MOST_STATED`` of the facts, which would be a fault of this program.
        """
        text = say(self.scene, self._draw(rng), rng)
        stated = stated_slots(self.facts, caption_claims(self.scene, text))
        if len(stated) > MOST_STATED * len(self.facts):
            raise RuntimeError(
                f"a habitual caption states {len(stated)} of {len(self.facts)} facts: {text!r}"
            )
        return text

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
