"""The protocol's rules, as the paper's appendix has them."""

from __future__ import annotations

import pytest

from vcap_jax.human_eval.errors import RuleBroken
from vcap_jax.human_eval.protocol import Ranking, Step1, Step2, Verdict, check_rankings, verdict_of


def test_the_labels_are_the_papers_exact_strings():
    assert [str(label) for label in Step1] == ["1. consistent", "2. inconsistent", "3. undecidable"]
    assert [str(label) for label in Step2] == ["1. not holding", "2. holding", "3. ambiguous"]


@pytest.mark.parametrize("step1", [None, "2. inconsistent", "3. undecidable"])
def test_step_2_is_open_only_after_consistent(step1):
    with pytest.raises(RuleBroken, match="step 2 is open only after"):
        verdict_of(step1, "2. holding", "")


@pytest.mark.parametrize(
    ("step1", "step2", "complete", "confirmed"),
    [
        (None, None, False, False),
        ("1. consistent", None, False, False),
        ("1. consistent", "1. not holding", True, False),
        ("1. consistent", "2. holding", True, True),
        ("1. consistent", "3. ambiguous", True, False),
        ("2. inconsistent", None, True, False),
        ("3. undecidable", None, True, False),
    ],
)
def test_what_is_complete_and_what_is_confirmed(step1, step2, complete, confirmed):
    verdict = verdict_of(step1, step2, "")
    assert (verdict.complete, verdict.confirmed) == (complete, confirmed)


@pytest.mark.parametrize("note", ["subjective", " Subjective "])
def test_subjective_implies_undecidable(note):
    assert verdict_of("3. undecidable", None, note).complete
    for step1 in (None, "1. consistent", "2. inconsistent"):
        with pytest.raises(RuleBroken, match="subjective"):
            verdict_of(step1, None, note)


def test_a_text_that_is_no_label_is_refused_with_the_labels():
    with pytest.raises(RuleBroken, match=r'"1\. consistent"'):
        verdict_of("consistent", None, "")


def test_a_note_has_a_bound():
    with pytest.raises(RuleBroken, match="1000"):
        Verdict(step1=Step1.CONSISTENT, note="x" * 1001)


def test_rankings_come_after_all_propositions_all_three_and_strict():
    done, open_ = Verdict(step1=Step1.INCONSISTENT), Verdict(step1=Step1.CONSISTENT)
    orders = dict.fromkeys(Ranking, ("b", "a"))
    check_rankings(orders, ["a", "b"], [done, done])
    with pytest.raises(RuleBroken, match="1 still to decide"):
        check_rankings(orders, ["a", "b"], [done, open_])
    with pytest.raises(RuleBroken, match="granularity still to do"):
        check_rankings({Ranking.ACCURACY: ["a", "b"], Ranking.COMPLETENESS: ["a", "b"]}, ["a", "b"], [done])
    for order in (["a", "a"], ["a"], ["a", "b", "c"]):
        # It says nothing of models: an annotator is told.
        with pytest.raises(
            RuleBroken, match=r"^a ranking has each of the 2 captions exactly once, without ties$"
        ):
            check_rankings(orders | {Ranking.ACCURACY: order}, ["a", "b"], [done])
