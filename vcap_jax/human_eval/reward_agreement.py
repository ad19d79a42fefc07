"""People and the reward, pair by pair: on which share of the items they order two models' captions alike, and what the
reward had counted where they do not. Pure; intervals come from drawing items again, or are Wilson's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from vcap_jax.human_eval.exchange import Records
from vcap_jax.human_eval.formulas import Ties, average_ranks, pair_outcome
from vcap_jax.human_eval.protocol import Kind, Ranking
from vcap_jax.human_eval.records import Item, Proposition, Rankings
from vcap_jax.report.intervals import Value, mean, ratio
from vcap_jax.reward.aggregation import comparable

RESAMPLES = 2000
LEVEL = 0.95
OVERALL = "overall"
"""The mean of the three ranks; the paper does not say which of them its rank is."""
ORDERS = (*map(str, Ranking), OVERALL)
ANNOTATORS = (1, 2, 3)
"""For how many annotators of each item it is told how many items a study needs."""
MOST_GROUPS = 200
"""Of annotators of one item, whose mean ranks are looked at."""
TIES: tuple[Ties, ...] = ("counted", "excluded", "half")
Ranks = Mapping[str, float]
_Z = 1.959964
"""Standard deviations to either end of a 95% interval."""


def human_ranks(records: Records, annotator: str | None = None) -> dict[str, dict[str, Ranks]]:
    """Ranks by ranking or "overall", item and model: the mean over annotators, or those of one."""
    found = by_item(one for one in records.rankings if annotator in (None, one.annotator))
    return {order: {item: mean_ranks(rows, order) for item, rows in found.items()} for order in ORDERS}


def by_item(rankings: Iterable[Rankings]) -> dict[str, list[Rankings]]:
    """Of each item all, in their order."""
    found: dict[str, list[Rankings]] = {}
    for one in rankings:
        found.setdefault(one.image_id, []).append(one)
    return found


def mean_ranks(rows: Sequence[Rankings], order: str = OVERALL) -> Ranks:
    """The mean of several people's ranks of one item by a ranking, or of all three. Equal means are equal numbers: a
    mean of means, in floating point, would tell a third of the ties apart."""
    each = [one.ranks(ranking) for one in rows for ranking in Ranking if order in (OVERALL, ranking)]
    return {model: sum(ranks[model] for ranks in each) / len(each) for model in each[0]}


def reward_ranks(items: Mapping[str, Item]) -> dict[str, Ranks]:
    """Ranks under the reward, by item, equal rewards sharing one; only items whose captions all have one."""
    found: dict[str, Ranks] = {}
    for item in items.values():
        rewards = {
            caption.model: comparable(caption.reward)
            for caption in item.captions
            if caption.reward is not None
        }
        if len(rewards) == len(item.captions):
            found[item.id] = average_ranks(rewards)
    return found


def mean_value(values: Iterable[float | None], seed: int) -> Value:
    """The mean of what items have one of each, with its interval; items that have None do not count."""
    found = np.array([one for one in values if one is not None], float)
    return mean(found, level=LEVEL, resamples=RESAMPLES, seed=seed)


def mean_over_items(values: Mapping[str, Sequence[float]], seed: int) -> Value:
    """The mean of what items have several of, with the interval of items drawn again; items that have none do not
    count. What one item has several of is not independent."""
    found = [of for of in values.values() if len(of)]
    sums, counts = np.array([sum(of) for of in found], float), np.array([len(of) for of in found], float)
    return ratio(sums, counts, level=LEVEL, resamples=RESAMPLES, seed=seed)


def share_over_items(values: Mapping[str, Sequence[float]], seed: int) -> Value:
    """``mean_over_items`` of values from 0 to 1, with Wilson's interval where each item has one that is 0 or 1, and
    wherever items drawn again give no width: of items that all agree, drawn ones agree too, however few they are.

    Source: Wilson 1927, Probable inference, the law of succession, and statistical inference.
    """
    found = mean_over_items(values, seed)
    single = all(len(of) == 1 and of[0] in (0, 1) for of in values.values() if len(of))
    if not found.n or not (single or found.low == found.high):
        return found
    share, more = found.value, _Z**2 / found.n
    middle, half = share + more / 2, math.sqrt(more * (share * (1 - share) + more / 4))
    return replace(
        found,
        low=max(0.0, (middle - half) / (1 + more)),
        high=min(1.0, (middle + half) / (1 + more)),
        method=f"Wilson's interval over samples, {LEVEL:.0%}",
    )


@dataclass(frozen=True, kw_only=True)
class PairRow:
    """On which share of items people and the reward order two models alike, by how ties count."""

    first: str
    second: str
    items: int
    ties: int
    agreement: Mapping[Ties, Value]


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Pairs of captions that the reward orders otherwise than people, and alike: in which share of them the caption
    that the reward prefers has more confirmed propositions of a kind than the other. Intervals are over the items that
    have such pairs."""

    kind: Kind
    when_unalike: Value
    when_alike: Value


def pair_row(
    a: str, b: str, people: Mapping[str, Ranks], rewards: Mapping[str, Ranks], *, seed: int
) -> PairRow:
    """Of two models, over the items that have both and that the reward ranks. people, rewards: ranks by item."""
    outcomes = {
        item: pair_outcome(ranks, rewards[item], a, b)
        for item, ranks in people.items()
        if item in rewards and a in ranks and b in ranks
    }
    return PairRow(
        first=a,
        second=b,
        items=len(outcomes),
        ties=list(outcomes.values()).count("tie"),
        agreement={
            ties: share_over_items({item: _credit(one, ties) for item, one in outcomes.items()}, seed)
            for ties in TIES
        },
    )


def _credit(outcome: str, ties: Ties) -> tuple[float, ...]:
    """What an outcome counts; nothing where it is left out."""
    if outcome == "tie":
        return {"counted": (1.0,), "excluded": (), "half": (0.5,)}[ties]
    return (float(outcome == "agree"),)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much a value differs from item to item. variance: of one item's. items: from how many it was found."""

    variance: float
    items: int

    def items_for(self, half_width: float) -> int:
        """Items that the mean needs for a 95% interval of that half width."""
        return max(2, math.ceil((_Z / half_width) ** 2 * self.variance))


def spread_of(values: Sequence[Sequence[float]]) -> Spread | None:
    """The spread of a value of which each item has several versions, one as likely as another; None without two items,
    and where all values are equal, which says nothing of how others would differ.

    The variance of one item's version: the mean square less the square of the mean, which is itself too large by the
    variance of the mean over items. Unbiased for any number of versions, however much they depend on each other.
    """
    groups = [np.asarray(of, float) for of in values if len(of)]
    if len(groups) < 2 or len(np.unique(np.concatenate(groups))) == 1:
        return None
    means = np.array([group.mean() for group in groups])
    squares = float(np.mean([(group**2).mean() for group in groups]))
    variance = squares - float(means.mean()) ** 2 + float(means.var(ddof=1)) / len(groups)
    return Spread(variance=max(0.0, variance), items=len(groups))


def spreads_of_agreement(records: Records, rewards: Mapping[str, Ranks]) -> dict[int, Spread]:
    """How the agreement with the reward differs from item to item, by how many annotators rank each.

    It is what ``mean_pairs_of`` averages: of overall ranks that are means over so many, ties counted. For more
    annotators than two items have it cannot be told: averaged ranks agree with the reward otherwise than each
    annotator's own.
    """
    rankings = by_item(one for one in records.rankings if one.image_id in rewards)
    found = {}
    for people in ANNOTATORS:
        each = [
            [
                agreement
                for group in _groups(rows, people)
                if (agreement := item_agreement(mean_ranks(group), rewards[item], "counted")) is not None
            ]
            for item, rows in rankings.items()
        ]
        spread = spread_of(each)
        if spread is not None:
            found[people] = spread
    return found


def _groups(rows: Sequence[Rankings], people: int) -> list[tuple[Rankings, ...]]:
    """All that so many of those who ranked an item could be, or some of them, drawn at random."""
    if math.comb(len(rows), people) <= MOST_GROUPS:
        return list(combinations(rows, people))
    rng = np.random.default_rng(0)
    return [
        tuple(rows[place] for place in rng.choice(len(rows), people, replace=False))
        for _ in range(MOST_GROUPS)
    ]


def item_agreement(people: Ranks, reward: Ranks, ties: Ties) -> float | None:
    """The mean over an item's pairs of captions; None where all are left out."""
    credits = [
        credit
        for a, b in combinations(people, 2)
        for credit in _credit(pair_outcome(people, reward, a, b), ties)
    ]
    return float(np.mean(credits)) if credits else None


def mean_pairs_of(people: Mapping[str, Ranks], rewards: Mapping[str, Ranks], seed: int) -> dict[Ties, Value]:
    """The mean over items of ``item_agreement``, by how ties count."""
    pairs = {item: (ranks, rewards[item]) for item, ranks in people.items() if item in rewards}

    def of_items(ties: Ties) -> dict[str, list[float]]:
        found = {item: item_agreement(*pair, ties) for item, pair in pairs.items()}
        return {item: [one] for item, one in found.items() if one is not None}

    return {ties: share_over_items(of_items(ties), seed) for ties in TIES}


def blame_of(
    propositions: Mapping[str, Sequence[Proposition]],
    shares: Mapping[str, float],
    people: Mapping[str, Ranks],
    rewards: Mapping[str, Ranks],
    seed: int,
) -> tuple[Blame, ...]:
    """By kind. shares: of each decided proposition, of the people that confirm it; an item of which not all are decided
    does not count."""
    more: defaultdict[tuple[Kind, str], dict[str, list[float]]] = defaultdict(dict)
    for item, ranks in people.items():
        if item not in rewards or any(one.prop_id not in shares for one in propositions[item]):
            continue
        counts: defaultdict[tuple[str, Kind], float] = defaultdict(float)
        for one in propositions[item]:
            counts[one.model, one.kind] += shares[one.prop_id]
        for a, b in combinations(ranks, 2):
            outcome = pair_outcome(ranks, rewards[item], a, b)
            if outcome == "tie":
                continue
            preferred, other = (a, b) if rewards[item][a] < rewards[item][b] else (b, a)
            for kind in Kind:
                found = float(counts[preferred, kind] > counts[other, kind])
                more[kind, outcome].setdefault(item, []).append(found)
    return tuple(
        Blame(
            kind=kind,
            when_unalike=share_over_items(more[kind, "disagree"], seed),
            when_alike=share_over_items(more[kind, "agree"], seed),
        )
        for kind in Kind
    )
