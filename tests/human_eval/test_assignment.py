"""Assignments: who gets what, and that nothing about it changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from vcap_jax.human_eval.assignment import AnnotatorView, assign
from vcap_jax.human_eval.records import Caption, Item, Proposition
from vcap_jax.human_eval.study import Settings, Study

ITEMS = [f"item-{n}" for n in range(50)]
PEOPLE = ["anna", "ben", "chris", "dora"]


def item(name, models):
    captions = tuple(Caption(model=model, text=model) for model in models)
    return Item(id=name, image="a.png", captions=captions)


def view(who, propositions=()):
    asked = {"i": tuple(propositions)}
    return AnnotatorView(Study(folder=Path(), settings=Settings(), items={}, propositions=asked), who)


def test_the_chosen_share_is_decided_by_several_and_the_work_is_even():
    given = assign(ITEMS, PEOPLE, overlap=0.3, overlap_size=3, seed=5)
    times = Counter(item for items in given.values() for item in items)
    assert Counter(times.values()) == {3: 15, 1: 35}
    assert all(len(set(items)) == len(items) for items in given.values())
    loads = [len(items) for items in given.values()]
    assert sum(loads) == 80
    assert max(loads) - min(loads) <= 1


def test_a_share_that_floating_point_makes_larger_is_what_was_written():
    items = [f"item-{n}" for n in range(100)]
    for overlap, several in ((0.07, 7), (0.14, 14), (0.28, 28), (0.55, 55), (0.071, 8), (0.0, 0), (1.0, 100)):
        given = assign(items, PEOPLE, overlap=overlap, overlap_size=2, seed=0)
        assert sum(map(len, given.values())) == 100 + several


def test_assignments_depend_on_the_seed_alone():
    def again(seed):
        return assign(list(reversed(ITEMS)), PEOPLE, overlap=0.3, overlap_size=2, seed=seed)

    assert again(5) == assign(ITEMS, PEOPLE, overlap=0.3, overlap_size=2, seed=5)
    assert again(5) != again(6)


def test_new_items_go_to_those_who_have_less():
    given = assign(ITEMS[:10], PEOPLE[:2], overlap=0, overlap_size=2, seed=0, load={"anna": 8})
    assert (len(given["anna"]), len(given["ben"])) == (1, 9)


def test_captions_are_shuffled_for_each_item_and_annotator_and_stay_so():
    def order(name, who):
        return tuple(view(who).letters(item(name, "abcde")).values())

    orders = {(name, who): order(name, who) for name in ITEMS for who in PEOPLE}
    assert orders == {(name, who): order(name, who) for name, who in orders}
    assert all(sorted(order) == list("abcde") for order in orders.values())
    assert len(set(orders.values())) > 60  # of 120 orders, drawn 200 times
    first = Counter(order[0] for order in orders.values())
    assert all(20 <= first[model] <= 60 for model in "abcde")  # 40 expected


def test_propositions_come_caption_by_caption_and_do_not_tell_what_they_were_found_with():
    rows = [
        Proposition(
            image_id="i",
            prop_id=f"{m}/{ref}/{n}",
            model=m,
            ref_model=ref,
            kind="missing",
            text=f"{m}{ref}{n}",
        )
        for m in "ab"
        for ref in "xyz"
        for n in range(8)
    ]
    seen = view("anna", rows)
    both = item("i", "ab")
    first, second = seen.letters(both).values()
    shown = seen.propositions(both)
    assert [one.model for one in shown] == [first] * 24 + [second] * 24
    assert [one.ref_model for one in shown[:24]] != [ref for ref in "xyz" for _ in range(8)]


def test_an_alias_says_nothing_and_differs_between_annotators():
    names = {view(who).alias("a/base/0") for who in PEOPLE}
    assert len(names) == 4
    assert not any("base" in name for name in names)
