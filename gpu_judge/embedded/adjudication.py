"""The witness-adjudicator rules on facts (paper, Section 2.2). Pure: claims and a verdict in, scores out.

The reference is a witness. Its claims mark slots; where the candidate speaks about a marked slot, its claim
is *armed* and the evidence decides whether it survives. A claim of the reference that the evidence supports
and the candidate lacks is an omission. What the reference says wrongly has no other effect than to mark its
slot: it is never expected of the candidate, and a candidate that says the true value there gains by it.

What a policy that optimises these scores could try, and what it gets:

* silence, or text without a claim: 0 on everything;
* several answers to one question: none of them covers it, and all of them are wrong, marked or not (one
  caption contradicting itself needs no witness);
* claims about times that fit no shot: wrong, marked or not, as the frames alone decide them; those of a reference
  are expected of nobody;
* avoiding the slots a reference is likely to mark: completeness falls with each; and where nothing at all is
  armed, correctness is ``UNTESTED``, less than any caption of which most was tested and survived;
* guessing: a wrong value costs its share of correctness and covers nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from vcap_jax.world.noisy_perception import ImperfectSight
from vcap_jax.world.slots import object_of, question_of, slot_words
from vcap_jax.world.video_grammar import NO_SHOT
from vcap_jax.world.vocabulary import Claim, Slot

UNTESTED = 5
"""Score of a dimension to which neither witness nor evidence has anything to say.

The rules speak of collisions only, so no collision would be a pass; but a claim that nobody tested must not
count as much as one that was tested and held, nor as little as one that fell.
"""

Verdict = Callable[[Slot, str], bool | None]
"""Whether the evidence supports a claim; None where it decides nothing."""


@dataclass(frozen=True, kw_only=True)
class Adjudication:
    """The outcome for one candidate.

    armed: claims that were tested; survived: of these, the ones that held.
    supported: distinct claims of the reference that the evidence supports; covered: of these, the ones the
        candidate makes.
    problems: confirmed problems in words.
    """

    armed: int
    survived: int
    supported: int
    covered: int
    problems: tuple[str, ...]

    @property
    def correctness(self) -> int:
        """Share of armed claims that survived, 0 to 10."""
        return share_score(self.survived, self.armed)

    @property
    def completeness(self) -> int:
        """Share of supported reference facts that are covered, 0 to 10."""
        return share_score(self.covered, self.supported)


def share_score(part: int, whole: int) -> int:
    """``part / whole`` as an integer from 0 to 10, halves rounded up.

    10 is kept for all and 0 for none, so that one problem among twenty shows. ``UNTESTED`` if ``whole`` is 0.
    """
    if whole == 0:
        return UNTESTED
    if part in (0, whole):
        return 10 * part // whole
    return min(max(math.floor(10 * part / whole + 0.5), 1), 9)


def by_question(claims: Iterable[Claim]) -> dict[Slot, tuple[Claim, ...]]:
    """Question -> the distinct claims that answer it, in order. Two answers to one question contradict each other, be
    they values of one slot or claims that each of two things covers the other."""
    answers: dict[Slot, list[Claim]] = {}
    for claim in dict.fromkeys(claims):
        answers.setdefault(question_of(claim[0]), []).append(claim)
    return {question: tuple(found) for question, found in answers.items()}


def contradictions(claims: Iterable[Claim]) -> list[Slot]:
    """Questions to which more than one answer is claimed."""
    return [question for question, answers in by_question(claims).items() if len(answers) > 1]


def taken_on_trust(reference: Sequence[Claim], empty: Collection[Slot] = ()) -> Verdict:
    """The verdict when there is no picture: the reference must be trusted, its errors included. empty: see
    ``adjudicate``."""
    believed = by_question(reference)

    def verdict(slot: Slot, value: str) -> bool | None:
        answers = believed.get(question_of(slot))
        if answers is None:
            return False if object_of(slot) in empty else None
        return (slot, value) in answers

    return verdict


def adjudicate(
    candidate: Sequence[Claim],
    reference: Sequence[Claim],
    verdict: Verdict,
    undecided: Collection[Slot] = (),
    empty: Collection[Slot] = (),
) -> Adjudication:
    """Scores the claims of a candidate against a reference and the evidence.

    Args:
        candidate: its claims; a slot may occur with several values.
        reference: the reference's claims; likewise.
        verdict: what the evidence says.
        undecided: slots that there is evidence of, but none that could decide. Whatever is claimed about them, even in
            contradiction, is neither armed nor expected.
        empty: whose slots (``object_of``) the reference says cannot be filled, as nothing is there. It marks them, and
            expects nothing of the candidate.
    """
    marked = {question_of(slot) for slot, _ in reference}
    claimed = by_question(claim for claim in candidate if claim[0] not in undecided)
    armed = survived = 0
    problems = []
    for question, answers in claimed.items():
        (slot, value), *others = answers
        if others:
            armed += len(answers)
            problems.append(f"contradicts itself about {_several(answers)}")
        elif slot[0] == NO_SHOT:
            armed += 1
            problems.append(f"gives a time range that fits no shot for {slot_words(slot)} ({value})")
        elif (question in marked or object_of(slot) in empty) and (holds := verdict(slot, value)) is not None:
            armed += 1
            survived += holds
            if not holds:
                problems.append(f"says {value} for {slot_words(slot)}, which the evidence refutes")
    supported = covered = 0
    for slot, value in dict.fromkeys(reference):
        if slot[0] != NO_SHOT and verdict(slot, value):
            supported += 1
            if claimed.get(question_of(slot)) == ((slot, value),):
                covered += 1
            else:
                problems.append(f"leaves out {slot_words(slot)} ({value})")
    return Adjudication(
        armed=armed, survived=survived, supported=supported, covered=covered, problems=tuple(problems)
    )


def _several(answers: Sequence[Claim]) -> str:
    """Answers that contradict each other, in words."""
    if len({slot for slot, _ in answers}) > 1:
        return " and ".join(slot_words(slot) for slot, _ in answers)
    return f"{slot_words(answers[0][0])}: {' and '.join(value for _, value in answers)}"


# -- without a witness: a holistic look (the paper's ablation "- reference caption") ------------------------------
#
# Nobody marks slots, so attention goes to what stands out: shape and colour of the most prominent objects, and the
# impression is one of three levels. Fine facts and the rest of the picture are not weighed, which is just what the
# paper says a judge loses without a reference.

_SALIENT = ("shape", "colour")
_LEVELS = ((0.9, 8), (0.5, 5), (0.0, 2))
"""(least share, score), best first."""
_NO_IMPRESSION = 5


def impression(candidate: Sequence[Claim], sight: ImperfectSight) -> Adjudication:
    """The problems among salient facts: shape and colour, as they are perceived, of the most prominent objects
    (``perception.attention`` of them; of equals, the first in reading order). Its counts are to be read through
    ``coarse_score``."""
    prominent = sorted(sight.prominence, key=lambda owner: -sight.prominence[owner])
    noticed = prominent[: sight.perception.attention]
    slots: list[Slot] = [(*owner, attribute) for owner in noticed for attribute in _SALIENT]
    salient = [(slot, sight.facts[slot]) for slot in slots if slot in sight.facts]
    return adjudicate(candidate, salient, sight.verdict, sight.unknown)


def coarse_score(part: int, whole: int) -> int:
    """A share as one of a few levels."""
    if whole == 0:
        return _NO_IMPRESSION
    return next(score for least, score in _LEVELS if part / whole >= least)
