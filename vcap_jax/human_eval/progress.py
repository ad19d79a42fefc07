"""How far a study is: time spent and left, agreement so far, what two annotators dispute; pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from vcap_jax.human_eval.answers import Assigned, Held, StoredRanking, StoredVerdict
from vcap_jax.human_eval.formulas import kendall_w, krippendorff_alpha
from vcap_jax.human_eval.protocol import Ranking, Verdict

PAUSE_S = 300.0
"""A longer gap between two answers is a pause, and counts as this much."""
ESTIMATE_FROM = 10
"""Decisions before which nothing is said about the time left: the first take long, with the rules to be read."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Of one annotator. decisions: propositions, and one for the rankings of each item. left_s: None as long as there
    is too little to estimate it from."""

    annotator: str
    finished: int
    items: int
    decided: int
    decisions: int
    spent_s: float
    left_s: float | None


@dataclass(frozen=True, kw_only=True)
class Dispute:
    """A proposition about which annotators disagree. answers: by annotator."""

    item: str
    prop: str
    answers: Mapping[str, Held]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Krippendorff's alpha over what several have decided; None where it is undefined.

    pairs: propositions that several have decided. label: of the end of both steps, nominal. confirmed: of whether it
    is a true omission or inconsistency. ranks: by ranking, ordinal over (item, caption). w: mean over items.
    """

    pairs: int
    label: float | None
    step1: float | None
    confirmed: float | None
    ranks: Mapping[Ranking, float | None]
    w: Mapping[Ranking, float | None]


def spent_seconds(times: Sequence[str]) -> float:
    """Time at work, from the times of opening and answering (ISO 8601): gaps, of which none counts as more than
    ``PAUSE_S``."""
    moments = [datetime.fromisoformat(time) for time in times]
    return sum(min(max((b - a).total_seconds(), 0.0), PAUSE_S) for a, b in pairwise(moments))


def progress_of(
    annotator: str, assigned: Sequence[Assigned], times: Sequence[str], *, taken_in: int = 0
) -> Progress:
    """How far one annotator is. taken_in: decisions that were made elsewhere, about whose time nothing is known."""
    finished = sum(one.finished for one in assigned)
    decided = sum(one.decided for one in assigned) + finished
    decisions = sum(one.total for one in assigned) + len(assigned)
    spent, here = spent_seconds(times), decided - taken_in
    enough = 0 < here >= min(ESTIMATE_FROM, decisions - taken_in)
    return Progress(
        annotator=annotator,
        finished=finished,
        items=len(assigned),
        decided=decided,
        decisions=decisions,
        spent_s=spent,
        left_s=spent / here * (decisions - decided) if enough and spent else None,
    )


def disputes(verdicts: Iterable[StoredVerdict]) -> list[Dispute]:
    """Propositions whose label is not the same for all who decided them, in the order of the verdicts."""
    by_prop: dict[tuple[str, str], dict[str, Held]] = {}
    for one in verdicts:
        by_prop.setdefault((one.item, one.prop), {})[one.annotator] = one.held
    return [
        Dispute(item=item, prop=prop, answers=answers)
        for (item, prop), answers in by_prop.items()
        if len({held.verdict.label for held in answers.values()}) > 1
    ]


def agreement_so_far(verdicts: Sequence[StoredVerdict], rankings: Sequence[StoredRanking]) -> Agreement:
    """Of all complete verdicts and rankings."""
    units: dict[str, dict[str, Verdict]] = {}
    for one in verdicts:
        units.setdefault(one.prop, {})[one.annotator] = one.held.verdict

    def alpha(view: Callable[[Verdict], Hashable]) -> float | None:
        seen = ({who: view(verdict) for who, verdict in unit.items()} for unit in units.values())
        return krippendorff_alpha(seen)

    by_ranking = {
        ranking: _rank_agreement([one for one in rankings if one.ranking is ranking]) for ranking in Ranking
    }
    return Agreement(
        pairs=sum(len(unit) > 1 for unit in units.values()),
        label=alpha(lambda verdict: verdict.label),
        step1=alpha(lambda verdict: verdict.step1),
        confirmed=alpha(lambda verdict: verdict.confirmed),
        ranks={ranking: found for ranking, (found, _) in by_ranking.items()},
        w={ranking: found for ranking, (_, found) in by_ranking.items()},
    )


def _rank_agreement(rows: Sequence[StoredRanking]) -> tuple[float | None, float | None]:
    """Ordinal alpha over (item, caption), and the mean of Kendall's W over items that several have ranked."""
    units: dict[tuple[str, str], dict[str, int]] = {}
    by_item: dict[str, list[dict[str, float]]] = {}
    for one in rows:
        places = {model: place for place, model in enumerate(one.models, 1)}
        by_item.setdefault(one.item, []).append({**places})
        for model, place in places.items():
            units.setdefault((one.item, model), {})[one.annotator] = place
    most = max((len(one.models) for one in rows), default=0)
    alpha = krippendorff_alpha(units.values(), "ordinal", order=range(1, most + 1))
    found = [w for ranked in by_item.values() if (w := kendall_w(ranked)) is not None]
    return alpha, sum(found) / len(found) if found else None
