"""From records to the paper's table: what was proposed and confirmed for each model, how people and the reward rank
the models, and how well everybody agrees. Pure; intervals come from drawing items again.

Where several people decided a proposition it counts as the share of them that confirm it, unless a third person has
decided: then as that one says. Where several ranked an item, a caption's rank is the mean of theirs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from vcap_jax.human_eval.exchange import Records
from vcap_jax.human_eval.formulas import (
    Ties,
    alpha_of,
    average_ranks,
    coincidence_matrix,
    kendall_tau,
    kendall_w,
    mean_tau,
    pair_outcome,
)
from vcap_jax.human_eval.planning import Spread, spread_of
from vcap_jax.human_eval.protocol import Kind, Ranking, Step1, Step2
from vcap_jax.human_eval.records import Answer, Item, Proposition
from vcap_jax.report.intervals import Value, mean

RESAMPLES = 2000
LEVEL = 0.95
OVERALL = "overall"
"""The mean of the three ranks; the paper does not say which of them its rank is."""
ORDERS = (*map(str, Ranking), OVERALL)
TIES: tuple[Ties, ...] = ("counted", "excluded", "half")
Ranks = Mapping[str, float]
LABELS = (
    *(f"{Step1.CONSISTENT}, {step2}" for step2 in Step2),
    str(Step1.INCONSISTENT),
    str(Step1.UNDECIDABLE),
)


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model.

    proposed, confirmed: by kind, of the propositions that are decided. mean_rank, median_rank: by people, by ranking or
    "overall", 1 the best. reward_rank: under the reward, None without rewards. words: mean of its captions.
    """

    model: str
    proposed: Mapping[Kind, int]
    confirmed: Mapping[Kind, Value]
    mean_rank: Mapping[str, Value]
    median_rank: Mapping[str, float]
    reward_rank: Value | None
    words: float


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
    """Pairs of captions that the reward orders otherwise than people, and alike: in how many of them the caption that
    the reward prefers has more confirmed propositions of a kind than the other."""

    kind: Kind
    when_unalike: Value
    when_alike: Value


@dataclass(frozen=True, kw_only=True)
class AnnotatorRow:
    """One annotator. labels: how often each was given. agreement: share of the propositions that others decided as well
    on which the label is the same as theirs. tau: mean over items, with others. reward: mean pairwise agreement of this
    one's overall ranks with the reward, ties counted."""

    annotator: str
    answers: int
    rankings: int
    labels: Mapping[str, int]
    agreement: Value
    tau: Value
    reward: Value


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that the report shows.

    alphas: Krippendorff's, by what it is of. concordance, tau: of people with each other, by ranking, means over items
    that several have ranked. pairs, mean_pairs: by ranking or "overall", empty without rewards. spread: of the
    agreement with the reward, for planning; None where it cannot be told.
    """

    items: int
    answered: int
    rows: tuple[ModelRow, ...]
    pairs: Mapping[str, tuple[PairRow, ...]]
    mean_pairs: Mapping[str, Mapping[Ties, Value]]
    alphas: Mapping[str, Value]
    concordance: Mapping[Ranking, Value]
    tau: Mapping[Ranking, Value]
    blame: tuple[Blame, ...]
    annotators: tuple[AnnotatorRow, ...]
    spread: Spread | None


def results_of(
    items: Mapping[str, Item],
    propositions: Mapping[str, Sequence[Proposition]],
    records: Records,
    *,
    seed: int = 0,
) -> Results:
    """The results of a study, or of what is there of it. Models that are not in every item count where they are."""
    answered = _confirmed_shares(records)
    ranks = human_ranks(records)
    rewards = reward_ranks(items)
    models = list(dict.fromkeys(model for item in items.values() for model in item.models))
    decided = {item: rows for item, rows in propositions.items() if any(p.prop_id in answered for p in rows)}
    rows = tuple(_model_row(model, items, decided, answered, ranks, rewards, seed=seed) for model in models)
    pairs = {
        order: tuple(_pair_row(a, b, ranks[order], rewards, seed=seed) for a, b in combinations(models, 2))
        for order in ORDERS
    }
    return Results(
        items=len(items),
        answered=len(decided),
        rows=rows,
        pairs=pairs if rewards else {},
        mean_pairs={order: _mean_pairs(ranks[order], rewards, seed) for order in ORDERS} if rewards else {},
        alphas=_alphas(records, seed),
        concordance={one: _over_items(records, one, kendall_w, seed) for one in Ranking},
        tau={one: _over_items(records, one, mean_tau, seed) for one in Ranking},
        blame=_blame(propositions, answered, ranks[OVERALL], rewards, seed) if rewards else (),
        annotators=tuple(
            _annotator_row(name, records, rewards, seed)
            for name in sorted(
                {one.annotator for one in records.answers} | {one.annotator for one in records.rankings}
            )
        ),
        spread=spread_of_agreement(records, rewards),
    )


def human_ranks(records: Records, annotator: str | None = None) -> dict[str, dict[str, Ranks]]:
    """Ranks by ranking or "overall", item and model: the mean over annotators, or those of one."""
    found: dict[str, dict[str, list[Ranks]]] = {order: {} for order in ORDERS}
    for one in records.rankings:
        if annotator is not None and one.annotator != annotator:
            continue
        each: dict[str, Ranks] = {str(ranking): one.ranks(ranking) for ranking in Ranking}
        each[OVERALL] = {m: float(np.mean([ranks[m] for ranks in each.values()])) for m in one.accuracy}
        for order, ranks in each.items():
            found[order].setdefault(one.image_id, []).append(ranks)
    return {
        order: {item: {m: float(np.mean([r[m] for r in rows])) for m in rows[0]} for item, rows in of.items()}
        for order, of in found.items()
    }


def reward_ranks(items: Mapping[str, Item]) -> dict[str, Ranks]:
    """Ranks under the reward, by item; only items whose captions all have one."""
    found: dict[str, Ranks] = {}
    for item in items.values():
        rewards = {caption.model: caption.reward for caption in item.captions if caption.reward is not None}
        if len(rewards) == len(item.captions):
            found[item.id] = average_ranks(rewards)
    return found


def _confirmed_shares(records: Records) -> dict[str, float]:
    """By proposition: the share of people that confirm it, or what the third person says."""
    votes: dict[str, list[bool]] = {}
    for one in records.answers:
        votes.setdefault(one.prop_id, []).append(one.verdict.confirmed)
    shares = {prop: float(np.mean(given)) for prop, given in votes.items()}
    return shares | {one.prop_id: float(one.verdict.confirmed) for one in records.adjudicated}


def _model_row(
    model: str,
    items: Mapping[str, Item],
    decided: Mapping[str, Sequence[Proposition]],
    shares: Mapping[str, float],
    ranks: Mapping[str, Mapping[str, Ranks]],
    rewards: Mapping[str, Ranks],
    *,
    seed: int,
) -> ModelRow:
    proposed: Counter[Kind] = Counter()
    confirmed: dict[Kind, list[float]] = {kind: [] for kind in Kind}
    for rows in decided.values():
        own = [one for one in rows if one.model == model]
        proposed.update(one.kind for one in own if one.prop_id in shares)
        for kind in Kind:
            confirmed[kind].append(sum(shares.get(one.prop_id, 0.0) for one in own if one.kind is kind))
    by_order = {order: [r[model] for r in of.values() if model in r] for order, of in ranks.items()}
    under = [r[model] for r in rewards.values() if model in r]
    words = [len(item.caption(model).split()) for item in items.values() if model in item.models]
    return ModelRow(
        model=model,
        proposed={kind: proposed[kind] for kind in Kind},
        confirmed={kind: _total(values, seed) for kind, values in confirmed.items()},
        mean_rank={order: _mean(values, seed) for order, values in by_order.items()},
        median_rank={
            order: float(np.median(values)) if values else float("nan") for order, values in by_order.items()
        },
        reward_rank=_mean(under, seed) if rewards else None,
        words=float(np.mean(words)),
    )


def _mean(values: Sequence[float], seed: int) -> Value:
    return mean(np.asarray(values, float), level=LEVEL, resamples=RESAMPLES, seed=seed)


def _total(values: Sequence[float], seed: int) -> Value:
    """A sum over items, with the interval of as many items drawn again."""
    of = _mean(values, seed)
    count = len(values)
    return Value(
        value=of.value * count,
        low=of.low * count,
        high=of.high * count,
        n=of.n,
        method=f"{of.method}; a sum over items",
    )


def _pair_row(
    a: str, b: str, people: Mapping[str, Ranks], rewards: Mapping[str, Ranks], *, seed: int
) -> PairRow:
    outcomes = [
        pair_outcome(ranks, rewards[item], a, b)
        for item, ranks in people.items()
        if item in rewards and a in ranks and b in ranks
    ]
    return PairRow(
        first=a,
        second=b,
        items=len(outcomes),
        ties=outcomes.count("tie"),
        agreement={
            ties: _mean([x for o in outcomes if (x := _credit(o, ties)) is not None], seed) for ties in TIES
        },
    )


def _credit(outcome: str, ties: Ties) -> float | None:
    """What an outcome counts; None where it is left out."""
    if outcome == "tie":
        return {"counted": 1.0, "excluded": None, "half": 0.5}[ties]
    return float(outcome == "agree")


def spread_of_agreement(records: Records, rewards: Mapping[str, Ranks]) -> Spread | None:
    """How the agreement with the reward on an item varies between items and between annotators."""
    values: dict[str, list[float]] = {}
    for name in {one.annotator for one in records.rankings}:
        for item, ranks in human_ranks(records, name)[OVERALL].items():
            found = item_agreement(ranks, rewards[item], "counted") if item in rewards else None
            if found is not None:
                values.setdefault(item, []).append(found)
    return spread_of(values)


def item_agreement(people: Ranks, reward: Ranks, ties: Ties) -> float | None:
    """The mean over an item's pairs of captions; None where all are left out."""
    credits = [
        credit
        for a, b in combinations(people, 2)
        if (credit := _credit(pair_outcome(people, reward, a, b), ties)) is not None
    ]
    return float(np.mean(credits)) if credits else None


def _mean_pairs(people: Mapping[str, Ranks], rewards: Mapping[str, Ranks], seed: int) -> dict[Ties, Value]:
    found: dict[Ties, Value] = {}
    for ties in TIES:
        each = [
            item_agreement(ranks, rewards[item], ties) for item, ranks in people.items() if item in rewards
        ]
        found[ties] = _mean([one for one in each if one is not None], seed)
    return found


def _alphas(records: Records, seed: int) -> dict[str, Value]:
    """Krippendorff's alpha of labels and ranks."""
    views: dict[str, tuple[Callable[[Answer], str], Sequence[str]]] = {
        "label, both steps": (lambda one: one.verdict.label, LABELS),
        "step 1": (lambda one: str(one.step1), tuple(map(str, Step1))),
        "confirmed or not": (lambda one: str(one.verdict.confirmed), ("False", "True")),
    }
    found = {}
    for name, (view, values) in views.items():
        units: dict[str, dict[str, dict[str, str]]] = {}
        for one in records.answers:
            units.setdefault(one.image_id, {}).setdefault(one.prop_id, {})[one.annotator] = view(one)
        matrices = [coincidence_matrix(of.values(), values) for of in units.values()]
        found[name] = _alpha(matrices, seed, ordinal=False)
    most = max((len(one.accuracy) for one in records.rankings), default=0)
    for ranking in Ranking:
        by_item: dict[str, dict[str, dict[str, int]]] = {}
        for order in records.rankings:
            for model, rank in order.ranks(ranking).items():
                by_item.setdefault(order.image_id, {}).setdefault(model, {})[order.annotator] = rank
        matrices = [coincidence_matrix(of.values(), range(1, most + 1)) for of in by_item.values()]
        found[f"ranks by {ranking}"] = _alpha(matrices, seed, ordinal=True)
    return found


def _alpha(matrices: Sequence[np.ndarray], seed: int, *, ordinal: bool) -> Value:
    """Alpha of the sum of the items' coincidence matrices, with an interval over items that say something."""
    kept = [one for one in matrices if one.any()]
    method = f"percentile bootstrap over items, {LEVEL:.0%}, {RESAMPLES} resamples"
    nothing = Value(value=float("nan"), low=float("nan"), high=float("nan"), n=len(kept), method=method)
    if not kept:
        return nothing
    stacked = np.stack(kept)
    whole = alpha_of(stacked.sum(axis=0), "ordinal" if ordinal else "nominal")
    if whole is None:
        return nothing
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(len(kept), np.full(len(kept), 1 / len(kept)), size=RESAMPLES)
    sums = np.tensordot(drawn, stacked, axes=1)
    again = [
        alpha for one in sums if (alpha := alpha_of(one, "ordinal" if ordinal else "nominal")) is not None
    ]
    low, high = np.quantile(again, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Value(value=whole, low=float(low), high=float(high), n=len(kept), method=method)


def _over_items(
    records: Records, ranking: Ranking, formula: Callable[[Sequence[Ranks]], float | None], seed: int
) -> Value:
    by_item: dict[str, list[Ranks]] = {}
    for one in records.rankings:
        by_item.setdefault(one.image_id, []).append(one.ranks(ranking))
    found = [formula(ranks) for ranks in by_item.values()]
    return _mean([one for one in found if one is not None], seed)


def _blame(
    propositions: Mapping[str, Sequence[Proposition]],
    shares: Mapping[str, float],
    people: Mapping[str, Ranks],
    rewards: Mapping[str, Ranks],
    seed: int,
) -> tuple[Blame, ...]:
    more: dict[tuple[Kind, str], list[float]] = {
        (kind, how): [] for kind in Kind for how in ("agree", "disagree")
    }
    for item, ranks in people.items():
        if item not in rewards:
            continue
        counts: defaultdict[tuple[str, Kind], float] = defaultdict(float)
        for one in propositions[item]:
            counts[one.model, one.kind] += shares.get(one.prop_id, 0.0)
        for a, b in combinations(ranks, 2):
            outcome = pair_outcome(ranks, rewards[item], a, b)
            if outcome == "tie":
                continue
            preferred, other = (a, b) if rewards[item][a] < rewards[item][b] else (b, a)
            for kind in Kind:
                more[kind, outcome].append(float(counts[preferred, kind] > counts[other, kind]))
    return tuple(
        Blame(
            kind=kind,
            when_unalike=_mean(more[kind, "disagree"], seed),
            when_alike=_mean(more[kind, "agree"], seed),
        )
        for kind in Kind
    )


def _annotator_row(name: str, records: Records, rewards: Mapping[str, Ranks], seed: int) -> AnnotatorRow:
    own = {one.prop_id: one.verdict.label for one in records.answers if one.annotator == name}
    same = [
        float(own[one.prop_id] == one.verdict.label)
        for one in records.answers
        if one.annotator != name and one.prop_id in own
    ]
    mine = human_ranks(records, name)
    others: dict[str, list[Ranks]] = {}
    for one in records.rankings:
        if one.annotator != name:
            each = [one.ranks(ranking) for ranking in Ranking]
            others.setdefault(one.image_id, []).append(
                {m: float(np.mean([r[m] for r in each])) for m in each[0]}
            )
    taus = [
        tau
        for item, ranks in mine[OVERALL].items()
        for other in others.get(item, [])
        if (tau := kendall_tau(ranks, other)) is not None
    ]
    reward = [
        found
        for item, ranks in mine[OVERALL].items()
        if item in rewards and (found := item_agreement(ranks, rewards[item], "counted")) is not None
    ]
    labels = Counter(own.values())
    return AnnotatorRow(
        annotator=name,
        answers=len(own),
        rankings=len(mine[OVERALL]),
        labels={label: labels[label] for label in LABELS},
        agreement=_mean(same, seed),
        tau=_mean(taus, seed),
        reward=_mean(reward, seed),
    )
