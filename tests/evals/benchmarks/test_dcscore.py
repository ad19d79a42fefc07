"""DCScore's formula on cases worked out by hand."""

import pytest

from vcap_jax.evals.benchmarks.dcscore import DcScore, FactScores, Trial, dcscore, fact_scores

# Five facts: two right ones share the person's fact 0, one wrong one has fact 1, a right one has no match, and a right
# one that describes nothing seen has fact 0 as well.
TRIAL = Trial(
    right=(True, True, False, True, True),
    matched=(0, 0, 1, None, 0),
    relevant=(True, True, True, True, False),
    oracle=4,
)


def close(found: FactScores | None, precision: float, recall: float) -> bool:
    f1 = 2 * precision * recall / (precision + recall)
    return found is not None and (found.precision, found.recall, found.f1) == pytest.approx(
        (precision, recall, f1)
    )


def test_all_facts() -> None:
    # Right: 4 of 5. Found: three thirds of fact 0, and one extra, of 4 + 1.
    assert close(fact_scores(TRIAL, relevant_only=False, weigh_all=True), 4 / 5, (1 + 1) / 5)
    # A wrong fact that the person does not have is nothing more that was found.
    invented = Trial(right=(True, False), matched=(0, None), relevant=(True, True), oracle=2)
    assert close(fact_scores(invented, relevant_only=False, weigh_all=True), 1 / 2, 1 / 2)


def test_relevant_facts_official_and_strict() -> None:
    # Right: 3 of 4. Of fact 0 two of three thirds, or two halves where only relevant ones share it.
    assert close(fact_scores(TRIAL, relevant_only=True, weigh_all=True), 3 / 4, (2 / 3 + 1) / 5)
    assert close(fact_scores(TRIAL, relevant_only=True, weigh_all=False), 3 / 4, (1 + 1) / 5)


def test_a_perfect_caption_has_one_and_a_wrong_one_nothing() -> None:
    perfect = Trial(right=(True, True), matched=(1, 0), relevant=(True, True), oracle=2)
    assert dcscore([perfect], official=True) == DcScore(
        precision=1, recall=1, f1=pytest.approx(1), f1_relevant=pytest.approx(1)
    )
    wrong = Trial(right=(False, False), matched=(1, 0), relevant=(True, True), oracle=2)
    assert dcscore([wrong], official=True) == DcScore(precision=0, recall=0, f1=0, f1_relevant=0)


def test_a_score_is_the_mean_over_trials() -> None:
    other = Trial(right=(False,) * 5, matched=TRIAL.matched, relevant=TRIAL.relevant, oracle=4)
    once, both = dcscore([TRIAL], official=False), dcscore([TRIAL, other], official=False)
    assert once is not None
    assert both is not None
    assert (both.precision, both.dcscore) == pytest.approx((once.precision / 2, once.dcscore / 2))
    assert once.dcscore == pytest.approx((once.f1 + once.f1_relevant) / 2)


def test_a_caption_without_facts_is_left_out_officially_and_0_strictly() -> None:
    silent = Trial(right=(), matched=(), relevant=(), oracle=3)
    chatter = Trial(right=(True,), matched=(0,), relevant=(False,), oracle=1)
    assert dcscore([silent], official=True) is dcscore([chatter], official=True) is None
    assert dcscore([silent], official=False) == DcScore(precision=0, recall=0, f1=0, f1_relevant=0)
    strict = dcscore([chatter], official=False)
    assert strict is not None
    assert (strict.f1, strict.f1_relevant) == (pytest.approx(1), 0)
