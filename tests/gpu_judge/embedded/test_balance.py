"""A caption and a reference taken apart, by hand."""

from __future__ import annotations

import json

from gpu_judge.embedded.balance import take_apart, text_scores
from gpu_judge.embedded.comparison import Said
from gpu_judge.embedded.prose import Prose
from vcap_jax.reward.balanced import Balance, balance_form
from vcap_jax.world.vocabulary import Claim, Slot

COLOUR: Slot = ("top left", "colour")
SHAPE: Slot = ("top left", "shape")
HIDDEN: Slot = ("top right", "shape")
FACTS = {COLOUR: "red", SHAPE: "ring"}
CLEAN = Prose(useful=1.0, meta=(), repeated=(), junk=())


def verdict(slot: Slot, value: str) -> bool | None:
    return None if slot == HIDDEN else FACTS.get(slot) == value


def said(*claims: Claim, prose: Prose = CLEAN) -> Said:
    return Said(claims=claims, prose=prose)


def balance(candidate: Said, reference: Said, most: int = 9) -> Balance:
    """As the reward reads it."""
    answer = json.dumps(take_apart(candidate, reference, verdict, {HIDDEN}, most))
    found = balance_form("template", most).read(answer, "stop")
    assert isinstance(found, Balance), found
    return found


def test_claims_are_settled_by_the_picture_and_units_by_the_text() -> None:
    reference = said((COLOUR, "blue"), (SHAPE, "ring"))  # its colour is wrong
    copied = balance(said((COLOUR, "blue"), (SHAPE, "ring")), reference)
    true = balance(said((COLOUR, "red"), (SHAPE, "ring")), reference)
    assert (copied.precision, copied.recall) == (0.5, 1.0)
    assert (true.precision, true.recall) == (1.0, 0.5)


def test_contradictions_are_false_and_cover_nothing() -> None:
    found = balance(said((COLOUR, "red"), (COLOUR, "blue")), said((COLOUR, "red")))
    assert (found.precision, found.recall) == (0.0, 0.0)
    assert (found.clarity, found.fluency, found.coherence) == (10, 10, 9)


def test_undecided_claims_are_left_out_and_empty_sentences_cannot_be_pointed_at() -> None:
    prose = Prose(useful=0.75, meta=("Nothing is missing.",), repeated=("again",), junk=())
    found = balance(said((COLOUR, "red"), (HIDDEN, "ring"), prose=prose), said((COLOUR, "red")))
    assert [(one.true, one.visible) for one in found.claims] == [(True, True), (True, False)]
    assert (found.clarity, found.fluency, found.coherence) == (4, 9, 10)


def test_false_claims_are_not_hidden_behind_the_end_of_a_list() -> None:
    claims: list[Claim] = [(SHAPE, "ring"), (COLOUR, "blue")]
    found = balance(said(*claims), said((COLOUR, "red")), most=1)
    assert [one.true for one in found.claims] == [False]


def test_a_text_that_claims_nothing_gets_nothing() -> None:
    assert set(text_scores(said()).values()) == {0}
