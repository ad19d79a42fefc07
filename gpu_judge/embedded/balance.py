"""A caption's claims settled by what is seen, a reference's units by the caption alone, and three scores for the text.
Pure.

A unit counts as covered when the caption says the same, whether or not it is true: recall is of the reference, as the
balanced reward is published. A sentence that states nothing the picture could show is a claim that nobody can point at.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from gpu_judge.embedded.adjudication import Verdict, by_question, contradictions
from gpu_judge.embedded.comparison import Said, entry
from gpu_judge.embedded.differences import holds
from gpu_judge.embedded.prose import CONTRADICTION_COST, META_COST, REPETITION_COST
from vcap_jax.system.json_values import JsonObject
from vcap_jax.world.slots import question_of, slot_words
from vcap_jax.world.vocabulary import Claim, Slot


def take_apart(
    candidate: Said,
    reference: Said,
    verdict: Verdict,
    undecided: Collection[Slot] = (),
    most: int | None = None,
) -> JsonObject:
    """Claims, units and scores as JSON; where there are more than ``most`` claims, the false ones come first.

    undecided: slots about which the evidence decides nothing; claims about them are left out of the list.
    """
    answers = by_question(candidate.claims)
    decided = by_question(claim for claim in candidate.claims if claim[0] not in undecided)
    listed: list[tuple[bool, JsonObject]] = []
    for claims in decided.values():
        held = holds(claims, verdict)
        if held is not None:
            listed += [(held, {"Claim": _words(one), "True": held, "Visible": True}) for one in claims]
    for text in (*candidate.prose.meta, *candidate.prose.junk):
        listed.append((False, {"Claim": entry(text), "True": True, "Visible": False}))
    if most is not None and len(listed) > most:
        listed.sort(key=lambda one: one[0])
    units: list[JsonObject] = [
        {"Unit": _words(one), "Covered": answers.get(question_of(one[0])) == (one,)}
        for one in reference.claims
    ]
    return {
        "Claims": [one for _, one in listed[:most]],
        "Units": units[:most],
        **text_scores(candidate),
    }


def text_scores(said: Said) -> dict[str, int]:
    """Clarity, Fluency and Coherence, 0 to 10; 0 for a text that claims nothing.

    Clarity is the share of useful words less a cost for text about the text, fluency falls with repetitions, coherence
    with contradictions.
    """
    if not said.claims:
        return dict.fromkeys(("Clarity", "Fluency", "Coherence"), 0)
    lapses = {
        "Clarity": 10 - math.floor(10 * said.prose.useful) + META_COST * len(said.prose.meta),
        "Fluency": REPETITION_COST * len(said.prose.repeated),
        "Coherence": CONTRADICTION_COST * len(contradictions(said.claims)),
    }
    return {name: max(10 - cost, 0) for name, cost in lapses.items()}


def _words(claim: Claim) -> str:
    slot, value = claim
    return entry(f"{slot_words(slot)}: {value}")
