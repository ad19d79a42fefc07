"""People against the reward: what is a tie, and intervals that are over items, whatever an item has several of."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom, rankdata

from vcap_jax.human_eval.exchange import Records
from vcap_jax.human_eval.formulas import average_ranks
from vcap_jax.human_eval.protocol import Kind
from vcap_jax.human_eval.records import Caption, Item, Proposition, Rankings
from vcap_jax.human_eval.reward_agreement import (
    OVERALL,
    Spread,
    blame_of,
    human_ranks,
    mean_over_items,
    mean_pairs_of,
    pair_row,
    reward_ranks,
    share_over_items,
    spread_of,
    spreads_of_agreement,
)
from vcap_jax.reward.aggregation import RewardWeights, weighted_reward
from vcap_jax.reward.scores import Scores

MODELS = "abcde"


def half_width(spread, items):
    """Of the 95% interval of the mean over so many items."""
    return 1.959964 * math.sqrt(spread.variance / items)


def test_what_stands_in_brackets_is_over_items_and_not_over_what_they_have_several_of():
    # Of 4 items two say yes 50 times and two say no. All 4 that are drawn are of one kind once in 16 times, which is
    # more than the 2.5% outside the interval on either side.
    found = mean_over_items({"a": [1.0] * 50, "b": [1.0] * 50, "c": [0.0] * 50, "d": [0.0] * 50}, seed=0)
    assert (found.value, found.low, found.high, found.n) == (0.5, 0, 1, 4)


def test_an_item_with_more_counts_more_and_one_with_nothing_not_at_all():
    found = mean_over_items({"a": [1.0, 1.0, 1.0], "b": [0.0], "c": []}, seed=0)
    assert (found.value, found.n) == (0.75, 2)


@pytest.mark.parametrize("items", [10, 20, 40])
@pytest.mark.parametrize("true", [0.5, 0.8, 0.9, 0.95])
def test_the_interval_of_a_share_holds_the_true_one(items, true):
    """Items drawn again missed 90% of 10 items in 34 of a hundred studies, for all that agree have no width."""
    misses = 0.0
    for alike in range(items + 1):
        found = share_over_items({str(i): [float(i < alike)] for i in range(items)}, 0)
        if not found.low <= true <= found.high:
            misses += binom.pmf(alike, items, true)
    assert misses < 0.09


def test_a_share_of_items_that_are_all_alike_has_an_interval():
    found = share_over_items({str(i): [1.0] * (i + 1) for i in range(8)}, 0)
    # n / (n + z^2) of n items that all say yes.
    assert (found.value, found.low, found.high, found.n) == (1, pytest.approx(8 / (8 + 1.959964**2)), 1, 8)
    assert "Wilson" in found.method
    several = {"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [0.0], "d": []}
    assert share_over_items(several, 0) == mean_over_items(several, 0)
    assert math.isnan(share_over_items({"d": []}, 0).low)


def ranked(item, annotator, *rankings):
    """rankings: the models' ranks by accuracy, completeness and granularity, in the order of MODELS."""
    ranks = [dict(zip(MODELS, of, strict=False)) for of in rankings]
    return Rankings(
        image_id=item, annotator=annotator, accuracy=ranks[0], completeness=ranks[1], granularity=ranks[2]
    )


def test_models_of_one_mean_rank_are_a_tie_whoever_gave_the_ranks():
    # Ranks of a: 1, 1, 1 and 1, 3, 3; of b: 2, 2, 2 and 2, 1, 1. Both sums are 10, and the means of the annotators'
    # means, 1 and 7/3 against 2 and 4/3, are not the same number in floating point.
    anna = ranked("x", "anna", (1, 2, 3), (1, 2, 3), (1, 2, 3))
    ben = ranked("x", "ben", (1, 2, 3), (3, 1, 2), (3, 1, 2))
    people = human_ranks(Records(answers=(), rankings=(anna, ben)))[OVERALL]
    assert people["x"] == {"a": 10 / 6, "b": 10 / 6, "c": 16 / 6}
    row = pair_row("a", "b", people, {"x": {"a": 2.0, "b": 1.0, "c": 3.0}}, seed=0)
    assert (row.items, row.ties) == (1, 1)


def test_rewards_that_rounding_alone_tells_apart_are_a_tie():
    weights = RewardWeights()
    scores = [(0, 6, 4), (4, 1, 4), (0, 0, 4)]
    rewards = [
        weighted_reward(
            Scores(analysis="", correctness=c, completeness=k, third=t, third_key="Text Quality"), weights
        )
        for c, k, t in scores
    ]
    assert rewards[0] != rewards[1]
    captions = tuple(Caption(model=m, text="x", reward=r) for m, r in zip(MODELS, rewards, strict=False))
    found = reward_ranks({"x": Item(id="x", image="x.png", captions=captions)})
    assert found["x"] == {"a": 1.5, "b": 1.5, "c": 3.0}


def test_pairwise_agreement_with_ties_counted_excluded_and_half():
    people = [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"c": 1, "a": 2}]
    reward = [
        {"a": 1, "b": 2},
        {"a": 1, "b": 2},
        {"a": 1.5, "b": 1.5},
        {"a": 1.0, "b": 2.0},
        {"a": 1, "b": 2},
    ]
    row = pair_row("a", "b", dict(enumerate(people)), dict(enumerate(reward)), seed=0)
    assert (row.items, row.ties) == (4, 1)
    assert {ties: value.value for ties, value in row.agreement.items()} == {
        "counted": 3 / 4, "excluded": pytest.approx(2 / 3), "half": 2.5 / 4,
    }  # fmt: skip
    nothing = pair_row("a", "b", {}, {}, seed=0)
    tied = pair_row("a", "b", {0: {"a": 1, "b": 1}}, {0: {"a": 1, "b": 2}}, seed=0)
    assert math.isnan(nothing.agreement["counted"].value)
    assert math.isnan(tied.agreement["excluded"].value)


def proposition(item, model, number):
    return Proposition(
        image_id=item,
        prop_id=f"{item}/{model}/{number}",
        model=model,
        ref_model="b" if model == "a" else "a",
        kind=Kind.MISSING,
        text="x",
    )


def test_blame_is_over_items_though_an_item_has_ten_pairs_of_captions():
    """The reward turns people's order round everywhere; in two of four items what it prefers omits more, always."""
    people = {item: {model: float(place) for place, model in enumerate(MODELS)} for item in "wxyz"}
    rewards = {item: {model: -rank for model, rank in ranks.items()} for item, ranks in people.items()}
    propositions = {
        item: [
            proposition(item, model, number)
            for place, model in enumerate(MODELS)
            for number in range(place if item in "wx" else len(MODELS) - place)
        ]
        for item in people
    }
    shares = {one.prop_id: 1.0 for rows in propositions.values() for one in rows}
    blame = {one.kind: one for one in blame_of(propositions, shares, people, rewards, 0)}
    found = blame[Kind.MISSING].when_unalike
    assert len(list(combinations(MODELS, 2))) == 10
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high, found.n) == (0, 1, 4)
    assert blame[Kind.MISSING].when_alike.n == 0


def test_blame_looks_at_the_caption_that_the_reward_prefers():
    """Of x the reward prefers b, otherwise than people, of y it prefers a, as they do; b omits more in both."""
    people = {item: {"a": 1.0, "b": 2.0} for item in "xy"}
    rewards = {"x": {"a": 2.0, "b": 1.0}, "y": {"a": 1.0, "b": 2.0}}
    propositions = {
        item: [proposition(item, "a", 0), proposition(item, "b", 0), proposition(item, "b", 1)]
        for item in people
    }
    shares = {one.prop_id: 1.0 for rows in propositions.values() for one in rows}
    blame = {one.kind: one for one in blame_of(propositions, shares, people, rewards, 0)}
    found = blame[Kind.MISSING]
    assert (found.when_unalike.value, found.when_alike.value) == (1, 0)
    assert (found.when_unalike.n, found.when_alike.n) == (1, 1)


def test_an_item_with_propositions_that_nobody_decided_is_nothing_to_blame_the_reward_for():
    people, rewards = {"x": {"a": 1.0, "b": 2.0}}, {"x": {"a": 2.0, "b": 1.0}}
    propositions = {"x": [proposition("x", "a", 0), proposition("x", "b", 0)]}

    def found(*decided):
        shares = {one.prop_id: 1.0 for one in decided}
        return blame_of(propositions, shares, people, rewards, 0)[list(Kind).index(Kind.MISSING)].when_unalike

    assert [found().n, found(propositions["x"][1]).n, found(*propositions["x"]).n] == [0, 0, 1]


def test_the_spread_is_that_of_the_figure_in_the_table_and_not_of_single_annotators():
    """400 items, two annotators who see captions through noise: as wide as the table says, so wide is foreseen."""
    rng = np.random.default_rng(0)
    given, rewards = [], {}
    for item in range(400):
        name, quality = str(item), rng.normal(size=len(MODELS))
        rewards[name] = average_ranks(dict(zip(MODELS, quality + rng.normal(0, 1, 5), strict=True)))
        for annotator in ("anna", "ben"):
            seen = [quality + rng.normal(0, 1, 5) for _ in range(3)]
            given.append(ranked(name, annotator, *[[int(r) for r in rankdata(-one)] for one in seen]))
    records = Records(answers=(), rankings=tuple(given))
    table = mean_pairs_of(human_ranks(records)[OVERALL], rewards, 0)["counted"]
    found = spreads_of_agreement(records, rewards)
    assert {people: spread.items for people, spread in found.items()} == {1: 400, 2: 400}
    assert half_width(found[2], 400) == pytest.approx((table.high - table.low) / 2, rel=0.06)
    # One annotator each, the other left out: the same way, with the interval of that table.
    anna = mean_pairs_of(human_ranks(records, "anna")[OVERALL], rewards, 0)["counted"]
    assert half_width(found[1], 400) == pytest.approx((anna.high - anna.low) / 2, rel=0.06)


def test_the_spread_is_told_for_no_more_annotators_than_two_items_have():
    orders = [(1, 2, 3)] * 3
    given = [ranked(item, "anna", *orders) for item in "xyz"]
    given += [ranked(item, "ben", *orders) for item in "xy"] + [ranked("x", "chris", *orders)]
    rewards = {item: {"a": 1.0, "b": 2.0, "c": 3.0} for item in "xz"} | {"y": {"a": 3.0, "b": 2.0, "c": 1.0}}
    found = spreads_of_agreement(Records(answers=(), rankings=tuple(given)), rewards)
    assert {people: spread.items for people, spread in found.items()} == {1: 3, 2: 2}


def test_of_many_annotators_some_groups_are_looked_at():
    orders = [(1, 2, 3)] * 3
    given = [ranked(item, f"p{who}", *orders) for item in "xy" for who in range(60)]
    rewards = {"x": {"a": 1.0, "b": 2.0, "c": 3.0}, "y": {"a": 3.0, "b": 2.0, "c": 1.0}}
    found = spreads_of_agreement(Records(answers=(), rankings=tuple(given)), rewards)
    assert {people: spread.variance for people, spread in found.items()} == pytest.approx(
        dict.fromkeys((1, 2, 3), 0.5)
    )


def test_one_value_of_each_item_gives_the_usual_variance():
    assert spread_of([[1.0], [2.0], [6.0]]) == Spread(variance=pytest.approx(7), items=3)


def test_variances_by_hand():
    # Items 0, 2 and 4, 6. Mean square 14, mean 3; the items' means 1 and 5 have the variance 8, their mean 4.
    found = spread_of([[0.0, 2.0], [4.0, 6.0], []])
    assert (found.variance, found.items) == (pytest.approx(14 - 9 + 4), 2)


def test_the_variance_of_drawn_values_is_found_again_however_many_an_item_has():
    rng = np.random.default_rng(0)
    values = [list(rng.normal(0, 0.3) + rng.normal(0, 0.2, size=1 + item % 3)) for item in range(20_000)]
    assert spread_of(values).variance == pytest.approx(0.13, rel=0.05)
    # On average it is right with three items as well.
    few = [spread_of(values[first : first + 3]).variance for first in range(0, 19_998, 3)]
    assert np.mean(few) == pytest.approx(0.13, rel=0.05)


def test_what_cannot_be_told_is_none():
    assert spread_of([]) is None
    assert spread_of([[1.0, 2.0], []]) is None
    # Of five items that all agree one cannot tell that two are enough.
    assert spread_of([[2 / 3]] * 4 + [[2 / 3, 2 / 3]]) is None


def test_the_number_of_items_gives_the_width_that_was_asked_for():
    spread = Spread(variance=0.1, items=9)
    items = spread.items_for(0.03)
    assert half_width(spread, items) <= 0.03 < half_width(spread, items - 1)
