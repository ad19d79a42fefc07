"""The witness-adjudicator rules on bare facts."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from gpu_judge.embedded.adjudication import (
    UNTESTED,
    Verdict,
    adjudicate,
    coarse_score,
    impression,
    share_score,
    taken_on_trust,
)
from vcap_jax.world.captions import wrong_claim, wrong_value
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.noisy_perception import PerceptionConfig, imperfect
from vcap_jax.world.sight import Sight
from vcap_jax.world.slots import question_of
from vcap_jax.world.video_grammar import NO_SHOT
from vcap_jax.world.vocabulary import IMAGE_PLACES, Claim, Facts

A, B, C = ("top left", "colour"), ("top left", "shape"), ("bottom right", "colour")
NOWHERE = (NO_SHOT, "top left", "colour")
TRUTH: Facts = {A: "red", B: "star", C: "blue", NOWHERE: "red"}
"""What an erring judge takes for true: a colour at a time that fits no shot, too."""


def verdict(slot: tuple[str | int, ...], value: str) -> bool | None:
    return None if slot == ("dark", "shape") else TRUTH.get(slot) == value


@pytest.mark.parametrize(
    ("candidate", "reference", "correctness", "completeness"),
    [
        # The two agree with each other and with the picture.
        ([(A, "red")], [(A, "red")], 10, 10),
        # An omission counts because the picture supports the missing fact ...
        ([(A, "red")], [(A, "red"), (B, "star")], 10, 5),
        # ... and does not where the reference invented it.
        ([(A, "red")], [(A, "red"), (B, "ring")], 10, 10),
        # A contradiction is the candidate's fault where the picture says so ...
        ([(A, "green")], [(A, "red")], 0, 0),
        # ... and the reference's where the picture says that: the candidate's claim was tested and held.
        ([(A, "red")], [(A, "green")], 10, UNTESTED),
        # Both wrong, in the same way or in different ways: agreement with a wrong witness is no defence.
        ([(A, "green")], [(A, "green")], 0, UNTESTED),
        ([(A, "pink")], [(A, "green")], 0, UNTESTED),
        # A false claim where the witness is silent stays undetected, a true one unrewarded.
        ([(A, "red"), (C, "pink")], [(A, "red")], 10, 10),
        ([(A, "red"), (C, "blue")], [(A, "red")], 10, 10),
        # An object where there is nothing, where the witness invented one too.
        ([(("center", "shape"), "ring")], [(("center", "shape"), "star")], 0, UNTESTED),
        # Nothing meets: neither a pass nor a failure.
        ([(C, "blue")], [(A, "red")], UNTESTED, 0),
        ([(C, "pink")], [(A, "red")], UNTESTED, 0),
        # Several values for one slot are all wrong and cover nothing, witness or no witness.
        ([(A, "red"), (A, "blue")], [(A, "red")], 0, 0),
        ([(B, "star"), (A, "red"), (A, "blue")], [(B, "star")], 3, 10),
        # A reference that contradicts itself marks the slot, and only its true value is expected.
        ([(A, "red")], [(A, "red"), (A, "blue")], 10, 10),
        # What the pixels cannot decide is left alone.
        ([(A, "red"), (("dark", "shape"), "ring")], [(A, "red"), (("dark", "shape"), "star")], 10, 10),
        # A time that fits no shot is wrong without a witness.
        ([(NOWHERE, "red"), (A, "red")], [(A, "red")], 5, 10),
        # So is one of the reference: it is not expected, whatever the evidence is taken for.
        ([(A, "red")], [(A, "red"), (NOWHERE, "red")], 10, 10),
        # The reference says nothing.
        ([(A, "red")], [], UNTESTED, UNTESTED),
    ],
)
def test_rules(candidate: list[Claim], reference: list[Claim], correctness: int, completeness: int) -> None:
    outcome = adjudicate(candidate, reference, verdict)
    assert (outcome.correctness, outcome.completeness) == (correctness, completeness)


def test_things_that_the_reference_says_are_not_there_are_looked_for() -> None:
    empty = [("middle center",), ("top left",)]
    invented: Claim = (("middle center", "shape"), "ring")
    # Invented where the witness says that nothing is: tested, and refuted.
    outcome = adjudicate([invented, (C, "blue")], [(C, "blue")], verdict, (), empty)
    assert (outcome.armed, outcome.survived, outcome.completeness) == (2, 1, 10)
    # A witness that overlooks a thing marks it; who tells of it gains, who does not loses nothing.
    seen = adjudicate([(A, "red"), (B, "star")], [(C, "blue")], verdict, (), empty)
    assert (seen.armed, seen.survived, seen.covered) == (2, 2, 0)
    assert adjudicate([(C, "blue")], [(C, "blue")], verdict, (), empty).completeness == 10
    # Without a picture it is believed, but for what it says itself.
    trusted = taken_on_trust([(A, "red")], empty)
    blind = adjudicate([invented, (A, "red"), (C, "pink")], [(A, "red")], trusted, (), empty)
    assert (blind.armed, blind.survived) == (2, 1)


OVER: Claim = (("top left", "top center", "overlap"), "covers")
UNDER: Claim = (("top center", "top left", "overlap"), "covers")


@pytest.mark.parametrize(
    ("candidate", "reference", "correctness", "completeness"),
    [
        ([OVER], [OVER], 10, 10),
        # Who says it the other way round speaks of what the witness marked, and does not cover it.
        ([UNDER], [OVER], 0, 0),
        ([OVER], [UNDER], 10, UNTESTED),
        # Both ways at once is a contradiction, witness or no witness.
        ([OVER, UNDER], [OVER], 0, 0),
        ([OVER, UNDER, (A, "red")], [(A, "red")], 3, 10),
        # A witness that says both is believed where it is right.
        ([OVER], [OVER, UNDER], 10, 10),
    ],
)
def test_which_of_two_things_covers_the_other_is_one_question(
    candidate: list[Claim], reference: list[Claim], correctness: int, completeness: int
) -> None:
    facts = TRUTH | dict([OVER])
    outcome = adjudicate(candidate, reference, lambda slot, value: facts.get(slot) == value)
    assert (outcome.correctness, outcome.completeness) == (correctness, completeness)
    if OVER in candidate and UNDER in candidate:
        assert len(outcome.problems) >= 1
        assert outcome.problems[0].startswith("contradicts itself about the one at the top left in front of")
    trusted = adjudicate([UNDER], [OVER], taken_on_trust([OVER]))
    assert (trusted.correctness, trusted.completeness) == (0, 0)


@pytest.mark.parametrize("said", [["ring"], ["star", "ring"], []])
def test_a_slot_that_the_evidence_cannot_decide_weighs_nothing_whatever_is_said(said: list[str]) -> None:
    dark = ("dark", "shape")
    reference: list[Claim] = [(A, "red"), (dark, "star")]
    outcome = adjudicate([(A, "red"), *((dark, value) for value in said)], reference, verdict, {dark})
    assert (outcome.armed, outcome.survived, outcome.supported, outcome.covered) == (1, 1, 1, 1)
    assert not outcome.problems


def test_without_a_picture_the_reference_is_believed_even_where_it_is_wrong() -> None:
    reference = [(A, "green"), (B, "star")]
    trusted = taken_on_trust(reference)
    assert adjudicate([(A, "red"), (B, "star")], reference, trusted).correctness == 5
    assert adjudicate([(A, "green"), (B, "star"), (C, "pink")], reference, trusted).correctness == 10
    assert adjudicate([(A, "green")], reference, trusted).completeness == 5


def test_share_score_keeps_ten_for_all_and_zero_for_none() -> None:
    assert [share_score(k, 4) for k in range(5)] == [0, 3, 5, 8, 10]
    assert share_score(19, 20) == share_score(99, 100) == 9
    assert share_score(1, 100) == 1
    assert share_score(0, 0) == UNTESTED


def test_unasked_the_most_prominent_objects_are_noticed_and_their_shape_and_colour_alone() -> None:
    large, small = ("center",), ("top left",)
    facts: Facts = {
        (*owner, kind): value
        for owner in (large, small)
        for kind, value in (("colour", "red"), ("shape", "star"), ("size", "large"))
    }
    seen = Sight(facts=facts, unknown=frozenset(), shots=(), prominence={small: 20.0, large: 90.0})
    sight = imperfect(seen, PerceptionConfig(attention=1), b"")

    def told(place: str, colour: str) -> tuple[int, int, int, int]:
        found = impression([((place, "colour"), colour), ((place, "shape"), "star")], sight)
        return found.armed, found.survived, found.supported, found.covered

    assert told("center", "red") == (2, 2, 2, 2)
    assert told("center", "blue") == (2, 1, 2, 1)
    assert told("top left", "blue") == (0, 0, 2, 0)
    levels = [coarse_score(part, 10) for part in range(11)]
    assert levels == [2, 2, 2, 2, 2, 5, 5, 5, 5, 8, 8]
    assert coarse_score(0, 0) == 5


@functools.cache
def facts_of(number: int) -> Facts:
    """Of a scene; drawing one takes longer than judging a hundred captions of it."""
    return scene_facts(sample_image_scene(5, number))


def random_case(rng: np.random.Generator) -> tuple[Facts, list[Claim], list[Claim], Verdict]:
    """Facts, a candidate of mixed worth, a reference of mixed worth, and the verdict of the picture."""
    facts = facts_of(int(rng.integers(60)))

    def mixed(keep: float, wrong: float) -> list[Claim]:
        said = [(slot, value) for slot, value in facts.items() if rng.random() < keep]
        said = [wrong_claim(s, v, rng) if rng.random() < wrong else (s, v) for s, v in said]
        if rng.random() < 0.3:
            said.append(((str(rng.choice(IMAGE_PLACES)), "colour"), "red"))
        return said

    return facts, mixed(0.7, 0.3), mixed(0.6, 0.3), lambda slot, value: facts.get(slot) == value


def scores(candidate: list[Claim], reference: list[Claim], judge: Verdict) -> tuple[int, int]:
    outcome = adjudicate(candidate, reference, judge)
    return outcome.correctness, outcome.completeness


def test_it_makes_no_difference_which_wrong_value_a_reference_has() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        facts, candidate, reference, judge = random_case(rng)
        other = [
            (s, v if facts.get(s) == v or s not in facts else wrong_value(s, facts[s], rng))
            for s, v in reference
        ]
        assert scores(candidate, reference, judge) == scores(candidate, other, judge)


def test_errors_of_the_reference_never_hurt_a_true_candidate() -> None:
    rng = np.random.default_rng(1)
    for _ in range(1000):
        facts, candidate, reference, judge = random_case(rng)
        true = [(s, v) for s, v in candidate if facts.get(s) == v]
        sound = [(s, v) for s, v in reference if facts.get(s) == v]
        with_errors, without = scores(true, reference, judge), scores(true, sound, judge)
        assert with_errors[0] >= without[0]
        assert with_errors[1] == without[1]
        assert scores(list(facts.items()), reference, judge)[0] in (10, UNTESTED)


def test_no_change_for_the_worse_ever_pays() -> None:
    rng = np.random.default_rng(2)
    for _ in range(1500):
        facts, candidate, reference, judge = random_case(rng)
        unique = dict(candidate)
        before = scores(list(unique.items()), reference, judge)
        right = [s for s, v in unique.items() if facts.get(s) == v]
        if not right:
            continue
        slot = right[int(rng.integers(len(right)))]
        left_out = [(s, v) for s, v in unique.items() if s != slot]
        spoiled = [*left_out, wrong_claim(slot, facts[slot], rng)]
        hedged = [*unique.items(), wrong_claim(slot, facts[slot], rng)]
        for worse in (spoiled, hedged):
            after = scores(worse, reference, judge)
            assert after[0] <= before[0]
            assert after[1] <= before[1]
        # Leaving a right claim out never covers more.
        assert scores(left_out, reference, judge)[1] <= before[1]


def test_no_change_for_the_better_ever_costs() -> None:
    rng = np.random.default_rng(3)
    for _ in range(1500):
        facts, candidate, reference, judge = random_case(rng)
        unique = dict(candidate)
        before = scores(list(unique.items()), reference, judge)
        missing = [slot for slot in facts if unique.get(slot) != facts[slot]]
        if not missing:
            continue
        slot = missing[int(rng.integers(len(missing)))]
        others = [claim for claim in unique.items() if question_of(claim[0]) != question_of(slot)]
        after = scores([*others, (slot, facts[slot])], reference, judge)
        assert after[1] >= before[1]
        armed_before = adjudicate(list(unique.items()), reference, judge).armed
        if (
            len(others) < len(unique) or armed_before
        ):  # the first armed claim leaves the untested middle, upwards
            assert after[0] >= before[0]


def test_listing_every_value_everywhere_is_worth_nothing() -> None:
    facts = scene_facts(sample_image_scene(0, 3))
    everything = [
        ((place, "colour"), colour) for place in IMAGE_PLACES for colour in ("red", "green", "blue", "pink")
    ]
    outcome = adjudicate(everything, list(facts.items()), lambda s, v: facts.get(s) == v)
    assert (outcome.correctness, outcome.completeness) == (0, 0)
