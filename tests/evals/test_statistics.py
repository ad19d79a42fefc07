"""Statistics over items against sums made by hand, and paired differences."""

import math
from dataclasses import replace

import numpy as np
import pytest

from vcap_jax.evals.protocol import Evaluation, Item
from vcap_jax.evals.statistics import (
    Columns,
    Sums,
    average,
    average_of_present,
    changes_of_means,
    evaluated,
    harmonic,
    mean,
    of_smallest_part,
    paired_differences,
    ratio,
)
from vcap_jax.report import intervals
from vcap_jax.system.json_records import parse_record


def item(name: str, **values: float) -> Item:
    return Item(id=name, captions=("c",), values=values)


ITEMS = [
    item("a", right=1, asked=2, recall=0.5),
    item("b", right=2, asked=2, precision=1.0),
    item("c", right=0, asked=6, recall=0.0),
    Item(id="d", captions=(), failure="no caption"),
]


def test_statistics_by_hand() -> None:
    found = evaluated(
        ITEMS,
        {
            "micro": ratio("right", "asked", scale=100),
            "mean": mean("recall"),
            "f1": harmonic(mean("recall"), mean("precision")),
            "average": average(mean("recall"), mean("precision")),
            "nothing": average(mean("recall"), mean("absent")),
            "present": average_of_present(mean("recall"), mean("absent")),
        },
    )
    assert found["micro"].value == pytest.approx(100 * 3 / 10)
    assert found["micro"].n == 3  # the failed item is not one
    assert found["mean"].value == 0.25
    assert found["f1"].value == pytest.approx(2 * 0.25 * 1 / 1.25)
    assert found["average"].value == 0.625
    assert math.isnan(found["nothing"].value)
    assert found["present"].value == 0.25
    assert found["micro"].low <= found["micro"].value <= found["micro"].high


def test_items_that_failed_make_no_interval_wider() -> None:
    items = [item(str(k), v=float(k)) for k in range(20)]
    failed = [Item(id=f"failed {k}", captions=(), failure="no caption") for k in range(20)]
    assert evaluated(items + failed, {"v": mean("v")}) == evaluated(items, {"v": mean("v")})


def test_a_figure_tells_of_how_many_items_it_is() -> None:
    statistics = {
        "micro": ratio("right", "asked"),
        "recall": mean("recall"),
        "f1": harmonic(mean("recall"), mean("precision")),
        "nothing": mean("absent"),
    }
    found = evaluated(ITEMS, statistics)
    assert {name: value.n for name, value in found.items()} == {
        "micro": 3,
        "recall": 2,
        "f1": 1,
        "nothing": 0,
    }
    other = [item("a", recall=0.1), item("b", recall=0.2)]
    assert paired_differences(ITEMS, other, {"recall": mean("recall")})["recall"].n == 1


def test_a_mean_of_stages_is_of_no_more_items_than_the_stage_that_has_the_fewest() -> None:
    items = [item(str(k), asked=1.0) for k in range(12)] + [item("one", asked=1.0, split=0.5)]
    statistics = {
        "stages": average(mean("asked"), mean("split")),
        "nested": harmonic(average_of_present(mean("asked"), mean("none")), mean("split")),
        "absent": average(mean("asked"), mean("none")),
    }
    assert {name: value.n for name, value in evaluated(items, statistics).items()} == {
        "stages": 1,
        "nested": 1,
        "absent": 0,
    }
    assert paired_differences(items, items, statistics)["stages"].n == 1
    assert of_smallest_part(items, statistics) == {"stages": 1, "nested": 1, "absent": 0}


def test_a_mean_over_sources_is_of_all_of_them_and_as_sure_as_the_smallest() -> None:
    items = [item(str(k), left=1.0) for k in range(12)] + [item(f"other {k}", right=0.5) for k in range(2)]
    parts = mean("left"), mean("right")
    statistics = {
        "present": average_of_present(*parts, mean("none")),
        "apart": average(*parts, apart=True),
        "plain": mean("left"),
    }
    assert {name: value.n for name, value in evaluated(items, statistics).items()} == {
        "present": 14,
        "apart": 14,
        "plain": 12,
    }
    assert of_smallest_part(items, statistics) == {"present": 2, "apart": 2, "plain": 12}
    by_twos = of_smallest_part(items, statistics, cluster=lambda name: name.split()[0])
    assert by_twos == {"present": 1, "apart": 1, "plain": 12}


def test_harmonic_of_two_zeros_is_zero() -> None:
    zeros = [item("a", p=0, r=0)]
    assert evaluated(zeros, {"f1": harmonic(mean("p"), mean("r"))})["f1"].value == 0


def test_a_ratio_has_the_interval_of_the_plain_one() -> None:
    rng = np.random.default_rng(0)
    over, under = rng.integers(0, 5, 40), rng.integers(5, 9, 40)
    items = [
        item(str(i), over=float(a), under=float(b)) for i, (a, b) in enumerate(zip(over, under, strict=True))
    ]
    ours, plain = evaluated(items, {"r": ratio("over", "under")})["r"], intervals.ratio(over, under)
    assert ours.value == pytest.approx(plain.value)
    assert (ours.low, ours.high) == pytest.approx((plain.low, plain.high))


def test_paired_differences_are_over_what_both_have() -> None:
    first = [item("a", v=0.1), item("b", v=0.5), item("only", v=0.9)]
    second = [
        item("b", v=0.7),
        item("a", v=0.3),
        Item(id="only", captions=(), failure="judge"),
    ]
    value = paired_differences(first, second, {"v": mean("v")})["v"]
    assert value.n == 2
    # The items differ, the difference does not: an unpaired interval would be wide.
    assert (value.value, value.low, value.high) == pytest.approx((0.2, 0.2, 0.2))


def test_no_items_measure_nothing() -> None:
    assert math.isnan(evaluated([], {"v": mean("v")})["v"].value)
    assert math.isnan(paired_differences([item("a", v=1)], [], {"v": mean("v")})["v"].value)


def test_sums_are_for_each_resample() -> None:
    sums = Sums(Columns(ITEMS[:3]), np.array([[1, 1, 1], [2, 0, 1]]))
    assert sums.total("right").tolist() == [3, 2]
    assert sums.number("recall").tolist() == [2, 3]


def test_items_of_one_cluster_are_drawn_together() -> None:
    # Two videos, of each the same item ten times: there are two draws to make, not twenty.
    items = [item(f"{video}:{k}", v=float(video)) for video in (0, 1) for k in range(10)]
    together = evaluated(items, {"v": mean("v")}, cluster=lambda name: name[0])["v"]
    assert (together.value, together.low, together.high, together.n) == (0.5, 0, 1, 2)
    apart = evaluated(items, {"v": mean("v")})["v"]
    assert apart.n == 20
    assert apart.high - apart.low < 0.5
    other = [item(one.id, v=1 - one.values["v"]) for one in items]
    change = paired_differences(items, other, {"v": mean("v")}, cluster=lambda name: name[0])["v"]
    assert (change.value, change.low, change.high, change.n) == (0, -1, 1, 2)


def test_items_that_say_what_they_are_of_are_drawn_together() -> None:
    items = [
        Item(id=f"{picture}{k}", captions=("c",), values={"v": float(picture)}, of=str(picture))
        for picture in (0, 1)
        for k in range(10)
    ]
    found = evaluated(items, {"v": mean("v")})["v"]
    assert (found.low, found.high, found.n) == (0, 1, 2)
    again = [parse_record(Item, one.line().encode(), "a line") for one in items]
    assert again == items
    assert paired_differences(items, again, {"v": mean("v")})["v"].n == 2


def test_a_metric_in_per_cent_has_no_change_though_all_is_zero_later() -> None:
    """Where all values are 0, a metric in per cent looks like their mean: a loss of 45 points was told as 0.45."""
    statistics = {"percent": mean("percent", scale=100), "plain": mean("plain")}
    before = tuple(item(str(k), percent=0.45, plain=0.45) for k in range(4))
    after = tuple(item(str(k), percent=0, plain=0) for k in range(4))
    start, later = (Evaluation(metrics=evaluated(of, statistics), items=of) for of in (before, after))
    assert {name: value.value for name, value in changes_of_means(start, later).items()} == {"plain": -0.45}
    assert changes_of_means(later, start).keys() == {"plain"}
    assert changes_of_means(replace(start, metrics={}), later) == {}


def test_draws_are_made_once_for_all_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    generator = np.random.default_rng

    def counted(seed: int) -> np.random.Generator:
        nonlocal made
        made += 1
        return generator(seed)

    monkeypatch.setattr(intervals.np.random, "default_rng", counted)
    statistics = {"first": mean("right"), "second": mean("recall"), "nothing": mean("none")}
    together = evaluated(ITEMS, statistics)
    assert made == 1
    assert together["second"] == evaluated(ITEMS, {"second": statistics["second"]})["second"]
    assert math.isnan(together["nothing"].value)
