"""People against the reward: intervals are over items, whatever an item has several of."""

from __future__ import annotations

from itertools import combinations

import pytest

from vcap_jax.human_eval.protocol import Kind
from vcap_jax.human_eval.records import Proposition
from vcap_jax.human_eval.reward_agreement import blame_of, mean_over_items

MODELS = "abcde"


def test_what_stands_in_brackets_is_over_items_and_not_over_what_they_have_several_of():
    # Of 4 items two say yes 50 times and two say no. All 4 that are drawn are of one kind once in 16 times, which is
    # more than the 2.5% outside the interval on either side.
    found = mean_over_items({"a": [1.0] * 50, "b": [1.0] * 50, "c": [0.0] * 50, "d": [0.0] * 50}, seed=0)
    assert (found.value, found.low, found.high, found.n) == (0.5, 0, 1, 4)


def test_an_item_with_more_counts_more_and_one_with_nothing_not_at_all():
    found = mean_over_items({"a": [1.0, 1.0, 1.0], "b": [0.0], "c": []}, seed=0)
    assert (found.value, found.n) == (0.75, 2)


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
