"""Differences by hand: who is right, who leaves out, who invents."""

from __future__ import annotations

import json

from gpu_judge.embedded.differences import list_differences
from vcap_jax.reward.claim_differences import Difference, Differences, differences_form
from vcap_jax.world.video_grammar import NO_SHOT
from vcap_jax.world.vocabulary import Claim, Slot

COLOUR: Slot = ("top left", "colour")
SHAPE: Slot = ("top left", "shape")
LIGHT: Slot = ("scene", "light")
HIDDEN: Slot = ("top right", "shape")
FACTS = {COLOUR: "red", SHAPE: "ring", LIGHT: "left"}


def verdict(slot: Slot, value: str) -> bool | None:
    return None if slot == HIDDEN else FACTS.get(slot) == value


def told(candidate: list[Claim], reference: list[Claim], most: int = 9) -> list[tuple[str, str, int, int]]:
    """(caption's error, reference's, their severities) of each difference, read as the reward reads them."""
    answer = json.dumps(list_differences(candidate, reference, verdict, {HIDDEN}, most))
    found = differences_form("template", most).read(answer, "stop")
    assert isinstance(found, Differences), found

    def short(one: Difference) -> tuple[str, str, int, int]:
        return one.caption.error, one.reference.error, one.caption.severity, one.reference.severity

    return [short(one) for one in found.differences]


def test_each_kind_of_difference() -> None:
    assert told([(COLOUR, "red")], []) == [("none", "omission", 0, 2)]
    assert told([], [(SHAPE, "ring")]) == [("omission", "none", 3, 0)]
    assert told([(COLOUR, "blue")], []) == [("invention", "none", 2, 0)]
    assert told([], [(LIGHT, "right")]) == [("none", "invention", 0, 1)]
    assert told([(COLOUR, "red")], [(COLOUR, "blue")]) == [("none", "invention", 0, 2)]
    assert told([(COLOUR, "pink")], [(COLOUR, "blue")]) == [("invention", "invention", 2, 2)]


def test_what_both_say_alike_is_no_difference_right_or_wrong() -> None:
    assert told([(COLOUR, "red"), (SHAPE, "star")], [(SHAPE, "star"), (COLOUR, "red")]) == []


def test_contradictions_and_times_without_a_shot_are_wrong_whatever_is_seen() -> None:
    both: list[Claim] = [(COLOUR, "red"), (COLOUR, "blue")]
    assert told(both, [(COLOUR, "red")]) == [("invention", "none", 2, 0)]
    nowhere: list[Claim] = [((NO_SHOT, *COLOUR), "red")]
    assert told(nowhere, []) == [("invention", "none", 2, 0)]


def test_what_cannot_be_decided_makes_no_difference() -> None:
    hidden: list[Claim] = [(HIDDEN, "ring"), (HIDDEN, "star")]
    assert told(hidden, [(HIDDEN, "cross")]) == []


def test_the_gravest_errors_of_the_candidate_come_first_and_the_list_ends() -> None:
    candidate: list[Claim] = [(LIGHT, "right"), (COLOUR, "red")]
    reference: list[Claim] = [(SHAPE, "ring")]
    assert told(candidate, reference) == [
        ("omission", "none", 3, 0),
        ("invention", "none", 1, 0),
        ("none", "omission", 0, 2),
    ]
    assert told(candidate, reference, most=1) == [("omission", "none", 3, 0)]
