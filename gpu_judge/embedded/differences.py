"""Where two captions differ, settled by what is seen. Pure: claims and a verdict in, the list out.

Both texts point at slots, and whatever either of them points at is looked at: the judge checks the reference as well as
the candidate, and claims of the candidate that no reference marks. That is more looking than the witness-adjudicator
asks for, and as the claim-difference reward is published.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_judge.embedded.adjudication import Verdict, by_question
from gpu_judge.embedded.comparison import entry
from vcap_jax.system.json_values import JsonObject
from vcap_jax.world.slots import slot_words
from vcap_jax.world.video_grammar import NO_SHOT
from vcap_jax.world.vocabulary import Claim, Slot

SEVERITY = {
    **dict.fromkeys(("shape", "objects", "motion", "event"), 3),
    **dict.fromkeys(
        ("colour", "size", "count", "background", "overlap", "into", "first", "camera", "shots"), 2
    ),
}
"""By the kind of a slot: what there is and what it does, how it looks, and everything else is a detail (1)."""


def list_differences(
    candidate: Sequence[Claim],
    reference: Sequence[Claim],
    verdict: Verdict,
    undecided: Collection[Slot] = (),
    most: int | None = None,
) -> JsonObject:
    """The differences as JSON, the gravest errors of the candidate first, ``most`` of them at most.

    undecided: slots about which the evidence decides nothing; what is claimed about them makes no difference.
    """
    ours, theirs = (
        by_question(claim for claim in claims if claim[0] not in undecided)
        for claims in (candidate, reference)
    )
    found: list[tuple[int, int, JsonObject]] = []
    for question in dict.fromkeys((*ours, *theirs)):
        mine, other = ours.get(question, ()), theirs.get(question, ())
        if set(mine) == set(other):
            continue
        held, told = holds(mine, verdict), holds(other, verdict)
        if None in (held if mine else True, told if other else True):
            continue
        caption, there = (
            _error(mine, held, other_right=bool(told)),
            _error(other, told, other_right=bool(held)),
        )
        severity = SEVERITY.get(str(question[-1]), 1)
        listed = {
            "Caption": _side(mine, caption, severity),
            "Reference": _side(other, there, severity),
        }
        found.append((severity * (caption != "none"), severity * (there != "none"), listed))
    found.sort(key=lambda one: (-one[0], -one[1]))  # stable: of equals the first that is read
    return {"Differences": [listed for _, _, listed in found[:most]]}


def holds(claims: Sequence[Claim], verdict: Verdict) -> bool | None:
    """Whether what is claimed about one question is so; None where the evidence decides nothing, or none is claimed.

    Several answers, and times that fit no shot, are wrong whatever is seen.
    """
    if not claims:
        return None
    if len(claims) > 1 or claims[0][0][0] == NO_SHOT:
        return False
    return verdict(*claims[0])


def _error(claims: Sequence[Claim], held: bool | None, *, other_right: bool) -> str:
    if not claims:
        return "omission" if other_right else "none"
    return "none" if held else "invention"


def _side(claims: Sequence[Claim], error: str, severity: int) -> JsonObject:
    words = " and ".join(f"{slot_words(slot)}: {value}" for slot, value in claims)
    return {"Claim": entry(words), "Error": error, "Severity": 0 if error == "none" else severity}
