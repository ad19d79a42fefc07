"""What captions of scenes say and leave out, in numbers: how weak a captioner is, for its card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from vcap_jax.world.facts import (
    FactCount,
    caption_claims,
    count_claims,
    count_inventions,
    scene_facts,
    scene_undecided,
)
from vcap_jax.world.habits import stated_slots
from vcap_jax.world.scenes import Scene


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
    """Measures captions, each with its scene. Raises ValueError for none."""
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
