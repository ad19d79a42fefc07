"""From records to the paper's table: what was proposed and confirmed for each model, how people and the reward rank
the models, and how well everybody agrees. Pure; intervals come from drawing items again.

Where several people decided a proposition it counts as the share of them that confirm it. Where they dispute it, and a
third person has decided, it counts as that one says. Where several ranked an item, a caption's rank is the mean of
theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from vcap_jax.human_eval.exchange import Records
from vcap_jax.human_eval.formulas import (
    Metric,
    Ties,
    alpha_of,
    coincidence_matrix,
    kendall_tau,
    kendall_w,
    mean_tau,
)
from vcap_jax.human_eval.protocol import Kind, Ranking, Step1, Step2, Verdict
from vcap_jax.human_eval.records import Answer, Item, Proposition
from vcap_jax.human_eval.reward_agreement import (
    LEVEL,
    ORDERS,
    OVERALL,
    RESAMPLES,
    Blame,
    PairRow,
    Ranks,
    Spread,
    blame_of,
    by_item,
    human_ranks,
    mean_over_items,
    mean_pairs_of,
    mean_ranks,
    mean_value,
    pair_row,
    reward_ranks,
    share_over_items,
    spreads_of_agreement,
)
from vcap_jax.report.intervals import Value, resampled
from vcap_jax.system.words import word_count

LABELS = (
    *(f"{Step1.CONSISTENT}, {step2}" for step2 in Step2),
    str(Step1.INCONSISTENT),
    str(Step1.UNDECIDABLE),
)


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model.

    proposed, confirmed: by kind, of the propositions that are decided. mean_rank, median_rank: by people, by ranking or
    "overall", 1 the best. reward_rank: under the reward, of the items that people ranked, or of all as long as there
    are none; None without rewards. words: mean of its captions.
    """

    model: str
    proposed: Mapping[Kind, int]
    confirmed: Mapping[Kind, Value]
    mean_rank: Mapping[str, Value]
    median_rank: Mapping[str, float]
    reward_rank: Value | None
    words: float


@dataclass(frozen=True, kw_only=True)
class AnnotatorRow:
    """One annotator. labels: how often each was given. agreement: share of others' answers to the same propositions
    that have the same label. tau: mean over others' rankings of the same items. reward: mean pairwise agreement of this
    one's overall ranks with the reward, ties counted. Intervals are over the items that several have."""

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

    answered: items with an answer, and those that are finished without a proposition.
    alphas: Krippendorff's, by what it is of. concordance, tau: of people with each other, by ranking, means over items
    that several have ranked. pairs, mean_pairs: by ranking or "overall", empty without rewards. spreads: of an item's
    agreement with the reward, for planning, by how many annotators rank it, as far as that can be told.
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
    spreads: Mapping[int, Spread]


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
    # An item is finished by its rankings. Where nothing was proposed, nothing is missing: a zero, not a gap.
    decided = {
        item: rows
        for item, rows in propositions.items()
        if any(one.prop_id in answered for one in rows) or (not rows and item in ranks[OVERALL])
    }
    rows = tuple(_model_row(model, items, decided, answered, ranks, rewards, seed=seed) for model in models)
    pairs = {
        order: tuple(pair_row(a, b, ranks[order], rewards, seed=seed) for a, b in combinations(models, 2))
        for order in ORDERS
    }
    return Results(
        items=len(items),
        answered=len(decided),
        rows=rows,
        pairs=pairs if rewards else {},
        mean_pairs={order: mean_pairs_of(ranks[order], rewards, seed) for order in ORDERS} if rewards else {},
        alphas=_alphas(records, seed),
        concordance={one: _over_items(records, one, kendall_w, seed) for one in Ranking},
        tau={one: _over_items(records, one, mean_tau, seed) for one in Ranking},
        blame=blame_of(propositions, answered, ranks[OVERALL], rewards, seed) if rewards else (),
        annotators=tuple(
            _annotator_row(name, records, rewards, seed)
            for name in sorted(
                {one.annotator for one in records.answers} | {one.annotator for one in records.rankings}
            )
        ),
        spreads=spreads_of_agreement(records, rewards),
    )


def _confirmed_shares(records: Records) -> dict[str, float]:
    """By proposition: the share of people that confirm it, or what the third person says of a dispute. A decision stays
    when people correct themselves, and says nothing once they agree."""
    votes: dict[str, list[Verdict]] = {}
    for one in records.answers:
        votes.setdefault(one.prop_id, []).append(one.verdict)
    shares = {prop: float(np.mean([one.confirmed for one in given])) for prop, given in votes.items()}
    disputed = {prop for prop, given in votes.items() if len({one.label for one in given}) > 1}
    decided = (one for one in records.adjudicated if one.prop_id in disputed)
    return shares | {one.prop_id: float(one.verdict.confirmed) for one in decided}


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
    for item, rows in decided.items():
        if model not in items[item].models:
            continue
        own = [one for one in rows if one.model == model]
        proposed.update(one.kind for one in own if one.prop_id in shares)
        for kind in Kind:
            confirmed[kind].append(sum(shares.get(one.prop_id, 0.0) for one in own if one.kind is kind))
    by_order = {order: [r[model] for r in of.values() if model in r] for order, of in ranks.items()}
    # Of the same items as people's: a mean of others would not be comparable.
    compared = ranks[OVERALL].keys() or rewards.keys()
    under = [r[model] for item, r in rewards.items() if model in r and item in compared]
    words = [word_count(item.caption(model)) for item in items.values() if model in item.models]
    return ModelRow(
        model=model,
        proposed={kind: proposed[kind] for kind in Kind},
        confirmed={kind: _total(values, seed) for kind, values in confirmed.items()},
        mean_rank={order: mean_value(values, seed) for order, values in by_order.items()},
        median_rank={
            order: float(np.median(values)) if values else float("nan") for order, values in by_order.items()
        },
        reward_rank=mean_value(under, seed) if rewards else None,
        words=float(np.mean(words)),
    )


def _total(values: Sequence[float], seed: int) -> Value:
    """A sum over items, with the interval of as many items drawn again."""
    of = mean_value(values, seed)
    count = len(values)
    return Value(
        value=of.value * count,
        low=of.low * count,
        high=of.high * count,
        n=of.n,
        method=f"{of.method}; a sum over items",
    )


def _alphas(records: Records, seed: int) -> dict[str, Value]:
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
    places = range(1, max((len(one.accuracy) for one in records.rankings), default=0) + 1)
    for ranking in Ranking:
        matrices = []
        for rows in by_item(records.rankings).values():
            models = rows[0].accuracy
            ranks = [{one.annotator: one.ranks(ranking)[model] for one in rows} for model in models]
            matrices.append(coincidence_matrix(ranks, places))
        found[f"ranks by {ranking}"] = _alpha(matrices, seed, ordinal=True)
    return found


def _alpha(matrices: Sequence[np.ndarray], seed: int, *, ordinal: bool) -> Value:
    """Alpha of the sum of the items' coincidence matrices, with an interval over items that say something."""
    kept = [one for one in matrices if one.any()]
    metric: Metric = "ordinal" if ordinal else "nominal"

    def alphas(counts: np.ndarray) -> np.ndarray:
        found = [alpha_of(one, metric) for one in np.tensordot(counts, np.stack(kept), axes=1)]
        return np.array([np.nan if alpha is None else alpha for alpha in found])

    return resampled(alphas, len(kept), level=LEVEL, resamples=RESAMPLES, seed=seed)


def _over_items(
    records: Records, ranking: Ranking, formula: Callable[[Sequence[Ranks]], float | None], seed: int
) -> Value:
    found = by_item(records.rankings).values()
    return mean_value((formula([one.ranks(ranking) for one in rows]) for rows in found), seed)


def _annotator_row(name: str, records: Records, rewards: Mapping[str, Ranks], seed: int) -> AnnotatorRow:
    own = {one.prop_id: one.verdict.label for one in records.answers if one.annotator == name}
    same: dict[str, list[float]] = {}
    for one in records.answers:
        if one.annotator != name and one.prop_id in own:
            alike = float(own[one.prop_id] == one.verdict.label)
            same.setdefault(one.image_id, []).append(alike)
    mine = human_ranks(records, name)
    others = by_item(one for one in records.rankings if one.annotator != name)
    taus = {
        item: [tau for o in others.get(item, []) if (tau := kendall_tau(ranks, mean_ranks([o]))) is not None]
        for item, ranks in mine[OVERALL].items()
    }
    labels = Counter(own.values())
    return AnnotatorRow(
        annotator=name,
        answers=len(own),
        rankings=len(mine[OVERALL]),
        labels={label: labels[label] for label in LABELS},
        agreement=share_over_items(same, seed),
        tau=mean_over_items(taus, seed),
        reward=mean_pairs_of(mine[OVERALL], rewards, seed)["counted"],
    )
