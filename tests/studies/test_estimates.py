"""Intervals: that they cover what they should, and pair what belongs together."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.report.summary import FactCounts
from vcap_jax.studies.estimates import difference, level, over_seeds, shares, with_seeds


def ratios(rng, rate, seeds=3, scenes=60, spread=0.0):
    """One arm: successes out of ten in every scene, at a rate that differs from seed to seed by ``spread``."""
    return [
        (
            rng.binomial(10, np.clip(rate + rng.normal(0, spread), 0, 1), scenes).astype(float),
            np.full(scenes, 10.0),
        )
        for _ in range(seeds)
    ]


def test_measures_are_the_counts_of_the_paper():
    counts = FactCounts(
        facts=np.array([4, 6]), claims=np.array([3, 5]), correct=np.array([2, 4]), captions=np.array([1, 1])
    )
    values = {
        name: np.divide(*map(np.sum, shares(counts, name))) for name in ("coverage", "false_claims", "f1")
    }
    assert values == pytest.approx({"coverage": 6 / 10, "false_claims": 2 / 8, "f1": 12 / 18})


def test_a_level_is_the_mean_of_the_seeds_and_its_interval_holds_it():
    arm = ratios(np.random.default_rng(0), 0.7)
    found = level(arm)
    assert found.by_seed == pytest.approx([over.sum() / under.sum() for over, under in arm])
    assert found.value == pytest.approx(np.mean(found.by_seed))
    assert found.low < found.value < found.high


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """With three seeds that really differ. A percentile bootstrap over seeds would cover about 75%."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(120):
        found = level(ratios(rng, 0.6, spread=0.05))
        covered += found.low <= 0.6 <= found.high
    assert covered >= 110


def test_what_both_arms_share_does_not_widen_their_difference():
    rng = np.random.default_rng(2)
    hard = rng.uniform(0.1, 0.9, 80)  # some scenes are harder than others, for everybody
    one, other = (
        [(rng.binomial(5000, hard * factor).astype(float), np.full(80, 5000.0)) for _ in range(3)]
        for factor in (1.0, 0.9)
    )
    gap = difference(one, other)
    assert gap.low > 0
    assert gap.high - gap.low < 0.5 * (level(one).high - level(one).low)


def test_a_difference_is_between_runs_of_one_seed():
    def arm(*rates: float) -> list:
        return [(np.full(20, 100 * rate), np.full(20, 100.0)) for rate in rates]

    gap = difference(arm(0.3, 0.5, 0.8), arm(0.2, 0.4, 0.7))
    assert gap.by_seed == pytest.approx((0.1, 0.1, 0.1))
    assert (gap.low, gap.high) == pytest.approx((0.1, 0.1))  # however far the seeds lie apart


def test_shares_end_at_one_and_single_seeds_have_no_interval():
    full = [(np.array([9.0, 10.0]), np.array([10.0, 10.0])), (np.array([10.0, 10.0]), np.array([10.0, 10.0]))]
    assert level(full).high == 1.0
    assert level(full, share=False).high > 1.0
    assert np.isnan(level(full[:1]).low)


def test_a_caption_that_claims_nothing_has_no_false_claims():
    silent = [(np.zeros(3), np.zeros(3)) for _ in range(3)]
    assert level(silent).value == 0.0


def test_student_over_seeds():
    found = over_seeds([1.0, 2.0, 3.0])
    half = 4.3027 / np.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=0.002)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([], [], "without seeds"),
        ([(np.ones(2), np.ones(2))], [], "seeds of one arm"),
        ([(np.ones(2), np.ones(2))], [(np.ones(3), np.ones(3))], "different numbers of scenes"),
    ],
)
def test_what_cannot_be_compared_is_refused(first, second, message):
    with pytest.raises(ValueError, match=message):
        difference(first, second)


def test_an_interval_with_more_seeds_keeps_what_scenes_leave():
    rng = np.random.default_rng(3)
    found = level([ratios(rng, rate, seeds=1)[0] for rate in (0.4, 0.5, 0.6)])
    same, more, most = (with_seeds(found, seeds) for seeds in (3, 6, 10_000))
    assert (same.low, same.high) == pytest.approx((found.low, found.high), abs=0.01)
    assert same.seeds == 3
    assert most.seeds == 10_000
    widths = [one.high - one.low for one in (same, more, most)]
    assert widths == sorted(widths, reverse=True)
    # What is left is the bootstrap over scenes, whose width one seed's rates give: 60 scenes, three seeds each.
    scenes_alone = level([ratios(np.random.default_rng(3), 0.5, seeds=1)[0]] * 3)
    assert widths[-1] < scenes_alone.high - scenes_alone.low
    seeds_alone = over_seeds([0.4, 0.5, 0.6])
    assert with_seeds(seeds_alone, 10_000).high == pytest.approx(0.5, abs=0.003)
    with pytest.raises(ValueError, match="a spread needs two"):
        with_seeds(over_seeds([0.4]), 3)
