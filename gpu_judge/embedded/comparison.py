"""Requests for lists in place of scores, and their answers: differences between two captions, settled by what is seen,
or a caption's claims and the units of another. Told by their delimiter lines and by the keys that they ask for, so that
user-written texts work too.

Both texts point at slots, and whatever either of them points at is looked at: the judge checks the reference as well as
the candidate, and claims of the candidate that no reference marks. That is more looking than the witness-adjudicator
asks for, and as these rewards are published. A unit counts as covered when the caption says the same, whether or not it
is true: recall is of the reference. A sentence that states nothing the picture could show is a claim that nobody can
point at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_judge.embedded.adjudication import Verdict, by_question, contradictions
from gpu_judge.embedded.delimiters import find_blocks, without_blocks
from gpu_judge.embedded.prose import CONTRADICTION_COST, META_COST, REPETITION_COST, Prose
from gpu_judge.embedded.request import BadRequest, Content, Picture
from vcap_jax.system.json_values import JsonObject
from vcap_jax.world.slots import question_of, slot_words
from vcap_jax.world.video_grammar import NO_SHOT
from vcap_jax.world.vocabulary import Claim, Slot

_NAMES = ("reference_caption", "generated_caption")
_MOST = re.compile(r"\b(?:at most|more than) (\d{1,6})\b")
_LONGEST_ENTRY = 160
_SEVERITY = {
    **dict.fromkeys(("shape", "objects", "motion", "event"), 3),
    **dict.fromkeys(
        ("colour", "size", "count", "background", "overlap", "into", "first", "camera", "shots"), 2
    ),
}
"""By the kind of a slot: what there is and what it does, how it looks, and everything else is a detail (1)."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A request for lists.

    wanted: which. kind: frames with times are a video's. most: entries of a list; None where no limit is named.
    """

    wanted: Literal["differences", "balance"]
    kind: Literal["image", "video"]
    pictures: tuple[Picture, ...]
    reference: str
    candidate: str
    most: int | None


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a text claims, each claim once, and how it reads."""

    claims: tuple[Claim, ...]
    prose: Prose


def read_comparison(content: Content) -> Comparison | None:
    """The request for lists; None for one of another kind.

    Raises BadRequest where a caption or the pictures are missing, or a caption stands there twice.
    """
    texts = "\n".join(content.texts)
    blocks = find_blocks(texts, _NAMES)
    asked = without_blocks(texts, blocks)
    wanted: Literal["differences", "balance"]
    if '"Differences"' in asked:
        wanted = "differences"
    elif '"Claims"' in asked and '"Units"' in asked:
        wanted = "balance"
    else:
        return None
    found = {block.name: block.text for block in blocks}
    if len(blocks) != 2 or set(found) != set(_NAMES):
        raise BadRequest(
            f"{len(blocks)} captions stand between delimiter lines; give one <reference_caption> and one "
            "<generated_caption>"
        )
    if not content.pictures:
        raise BadRequest("there is no picture, and what two captions say is settled by it")
    timed = [picture.seconds is not None for picture in content.pictures]
    if any(timed) and not all(timed):
        raise BadRequest("every frame of a video needs a text part '<12.3 seconds>' before it")
    most = _MOST.search(asked)
    return Comparison(
        wanted=wanted,
        kind="video" if timed[0] else "image",
        pictures=content.pictures,
        reference=found["reference_caption"],
        candidate=found["generated_caption"],
        most=int(most[1]) if most else None,
    )


def list_differences(
    candidate: Sequence[Claim],
    reference: Sequence[Claim],
    verdict: Verdict,
    undecided: Collection[Slot],
    most: int | None,
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
        caption = _error(mine, held, other_right=bool(told))
        there = _error(other, told, other_right=bool(held))
        severity = _SEVERITY.get(str(question[-1]), 1)
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


def take_apart(
    candidate: Said,
    reference: Said,
    verdict: Verdict,
    undecided: Collection[Slot],
    most: int | None,
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


def entry(text: str) -> str:
    """A text at the length that an entry may have."""
    return text if len(text) <= _LONGEST_ENTRY else f"{text[: _LONGEST_ENTRY - 3]}..."
