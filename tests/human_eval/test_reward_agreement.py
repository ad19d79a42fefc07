"""People against the reward: what is a tie, and intervals that are over items, whatever an item has several of."""

from __future__ import annotations

from itertools import combinations

import pytest

from vcap_jax.human_eval.exchange import Records
from vcap_jax.human_eval.protocol import Kind
from vcap_jax.human_eval.records import Proposition, Rankings
from vcap_jax.human_eval.reward_agreement import (
    OVERALL,
    blame_of,
    human_ranks,
    mean_over_items,
    pair_row,
)

MODELS = "abcde"


def test_what_stands_in_brackets_is_over_items_and_not_over_what_they_have_several_of():
    # Of 4 items two say yes 50 times and two say no. All 4 that are drawn are of one kind once in 16 times, which is
    # more than the 2.5% outside the interval on either side.
    found = mean_over_items({"a": [1.0] * 50, "b": [1.0] * 50, "c": [0.0] * 50, "d": [0.0] * 50}, seed=0)
    assert (found.value, found.low, found.high, found.n) == (0.5, 0, 1, 4)


def test_an_item_with_more_counts_more_and_one_with_nothing_not_at_all():
    found = mean_over_items({"a": [1.0, 1.0, 1.0], "b": [0.0], "c": []}, seed=0)
    assert (found.value, found.n) == (0.75, 2)


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
