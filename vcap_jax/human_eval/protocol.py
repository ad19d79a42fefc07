"""The rules of the paper's human annotation protocol (appendix "Human Annotation Protocol"); pure.

A proposition is decided in two steps. Step 1 compares it with the picture alone. Step 2 compares it with the caption,
and only where step 1 says that it is consistent. When all propositions of an item are decided, its captions are
ranked three times. The labels are the paper's exact strings, so that they parse downstream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from vcap_jax.human_eval.errors import RuleBroken

SUBJECTIVE = "subjective"
"""The note on a proposition about mood, atmosphere or taste, which is out of scope: it is then undecidable."""
NOTE_CHARACTERS = 1000
"""The longest note."""


class Kind(StrEnum):
    """What a proposition says of a caption."""

    MISSING = "missing"
    INCONSISTENT = "inconsistent"


class Step1(StrEnum):
    """Proposition against picture."""

    CONSISTENT = "1. consistent"
    INCONSISTENT = "2. inconsistent"
    UNDECIDABLE = "3. undecidable"


class Step2(StrEnum):
    """Proposition against caption, where step 1 says consistent."""

    NOT_HOLDING = "1. not holding"
    HOLDING = "2. holding"
    AMBIGUOUS = "3. ambiguous"


class Ranking(StrEnum):
    """What captions are ranked by: fewer errors, fewer omissions, finer detail."""

    ACCURACY = "accuracy"
    COMPLETENESS = "completeness"
    GRANULARITY = "granularity"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an annotator says of one proposition, perhaps in the middle of it.

    step1, step2: None where nothing is said yet, or where step 2 is not asked. Raises RuleBroken for what the
    protocol does not allow.
    """

    step1: Step1 | None = None
    step2: Step2 | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.step2 is not None and self.step1 is not Step1.CONSISTENT:
            raise RuleBroken(f'step 2 is open only after "{Step1.CONSISTENT}" in step 1: leave it out')
        if self.note.strip().casefold() == SUBJECTIVE and self.step1 is not Step1.UNDECIDABLE:
            raise RuleBroken(
                f'the note "{SUBJECTIVE}" means "{Step1.UNDECIDABLE}": answer so, or change the note'
            )
        try:
            self.note.encode()
        except UnicodeEncodeError as error:
            raise RuleBroken(
                "a note has half of a character, which no file can hold: write it anew"
            ) from error
        if len(self.note) > NOTE_CHARACTERS:
            raise RuleBroken(
                f"a note has at most {NOTE_CHARACTERS} characters, not {len(self.note)}: shorten it"
            )

    @property
    def complete(self) -> bool:
        """Whether nothing more is to be asked."""
        return self.step1 is not None and (self.step1 is not Step1.CONSISTENT or self.step2 is not None)

    @property
    def confirmed(self) -> bool:
        """Whether it is a true omission or a true inconsistency."""
        return self.step2 is Step2.HOLDING

    @property
    def label(self) -> str:
        """The end of the way through both steps, one of five: what two annotators agree or disagree about."""
        if self.step1 is not Step1.CONSISTENT:
            return "" if self.step1 is None else str(self.step1)
        return "" if self.step2 is None else f"{self.step1}, {self.step2}"


def verdict_of(step1: str | None, step2: str | None, note: str) -> Verdict:
    """A verdict of texts. Raises RuleBroken for a text that is no label."""
    try:
        return Verdict(
            step1=None if step1 is None else Step1(step1),
            step2=None if step2 is None else Step2(step2),
            note=note,
        )
    except RuleBroken:
        raise
    except ValueError as error:
        known = ", ".join(f'"{label}"' for label in (*Step1, *Step2))
        raise RuleBroken(f"{error}: the labels are {known}") from error


def check_permutation(order: Sequence[str], captions: Sequence[str]) -> None:
    """Raises RuleBroken unless ``order`` has each caption once. Its message goes to people who must not learn whose
    caption is whose."""
    if Counter(order) != Counter(captions):
        raise RuleBroken(f"a ranking has each of the {len(captions)} captions exactly once, without ties")


def check_rankings(
    rankings: Mapping[Ranking, Sequence[str]], captions: Sequence[str], verdicts: Sequence[Verdict]
) -> None:
    """Raises RuleBroken unless all propositions are decided and all three rankings are strict permutations."""
    undecided = sum(not verdict.complete for verdict in verdicts)
    if undecided:
        raise RuleBroken(f"captions are ranked after all propositions: {undecided} still to decide")
    missing = [str(ranking) for ranking in Ranking if ranking not in rankings]
    if missing:
        raise RuleBroken(f"the rankings are given together: {', '.join(missing)} still to do")
    for order in rankings.values():
        check_permutation(order, captions)
