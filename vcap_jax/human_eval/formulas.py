"""How well people agree: pure formulas. What is undefined is None, never a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

import numpy as np

Metric = Literal["nominal", "ordinal"]
Ties = Literal["counted", "excluded", "half"]


def krippendorff_alpha(
    units: Iterable[Mapping[str, Hashable]], metric: Metric = "nominal", *, order: Sequence[Hashable] = ()
) -> float | None:
    """Krippendorff's alpha, 1 - observed / expected disagreement.

    units: of each thing that is judged, rater to value; whoever is not in it has not judged it. order: of an ordinal
    metric, all values from the lowest to the highest. None where it is undefined: no unit has two values, or all
    values are the same.

    Source: Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011: the coincidence matrix, missing data, and
    the ordinal metric over the counts between two values.
    """
    chosen = [unit for unit in units if len(unit) >= 2]
    found = {value for unit in chosen for value in unit.values()}
    if metric == "ordinal" and not found <= set(order):
        raise ValueError(f"values that the order does not have: {found - set(order)}")
    values = list(order) if metric == "ordinal" else sorted(found, key=repr)
    return alpha_of(coincidence_matrix(chosen, values), metric)


def coincidence_matrix(units: Iterable[Mapping[str, Hashable]], values: Sequence[Hashable]) -> np.ndarray:
    """How often each two of the V values meet in a unit, [V, V]; those of several sets of units add up.

    A unit with m values counts each of its ordered pairs 1 / (m - 1) times.
    """
    place = {value: index for index, value in enumerate(values)}
    coincidences = np.zeros((len(values), len(values)))
    for unit in units:
        if len(unit) < 2:
            continue
        counts = Counter(place[value] for value in unit.values())
        for a, times_a in counts.items():
            for b, times_b in counts.items():
                coincidences[a, b] += times_a * (times_b - (a == b)) / (len(unit) - 1)
    return coincidences


def alpha_of(coincidences: np.ndarray, metric: Metric = "nominal") -> float | None:
    """Alpha of a coincidence matrix; an ordinal one is in the order of the values. None where it is undefined."""
    marginals = coincidences.sum(axis=0)
    total = marginals.sum()
    if total == 0 or np.count_nonzero(marginals) < 2:
        return None
    apart = _ordinal_distances(marginals) if metric == "ordinal" else 1 - np.eye(len(marginals))
    observed = (coincidences * apart).sum()
    expected = (np.outer(marginals, marginals) * apart).sum() / (total - 1)
    return float(1 - observed / expected)


def _ordinal_distances(marginals: np.ndarray) -> np.ndarray:
    """Squared: how many values lie between two, half of those at either end."""
    upto = np.cumsum(marginals) - marginals / 2
    return (upto[:, None] - upto[None, :]) ** 2


def kendall_w(rankings: Sequence[Mapping[str, float]]) -> float | None:
    """Kendall's W of m rankings of the same n things, with the correction for ties; 1 where all are the same.

    None for fewer than two rankings or things, and where every ranking ties everything.
    Source: Siegel and Castellan, Nonparametric Statistics for the Behavioral Sciences, 2nd edition, section 9.5.
    """
    m = len(rankings)
    if m < 2:
        return None
    things = list(rankings[0])
    if any(set(ranking) != set(things) for ranking in rankings):
        raise ValueError("the rankings are of different things")
    n = len(things)
    sums = np.array([sum(ranking[thing] for ranking in rankings) for thing in things])
    spread = ((sums - sums.mean()) ** 2).sum()
    ties = sum(
        times**3 - times for ranking in rankings for times in Counter(ranking[t] for t in things).values()
    )
    most = m**2 * (n**3 - n) - m * ties
    return None if most == 0 else float(12 * spread / most)


def kendall_tau(first: Mapping[str, float], second: Mapping[str, float]) -> float | None:
    """Kendall's tau-b of two rankings of the same things (scipy); None where one of them ties everything."""
    # Importing it takes seconds, which a server's start would wait for.
    from scipy.stats import kendalltau

    if set(first) != set(second):
        raise ValueError("the rankings are of different things")
    things = list(first)
    tau = float(kendalltau([first[t] for t in things], [second[t] for t in things]).statistic)
    return None if math.isnan(tau) else tau


def mean_tau(rankings: Sequence[Mapping[str, float]]) -> float | None:
    """The mean of tau-b over all pairs of rankings; None where there is no pair."""
    found = [tau for a, b in combinations(rankings, 2) if (tau := kendall_tau(a, b)) is not None]
    return float(np.mean(found)) if found else None


def average_ranks(values: Mapping[str, float]) -> dict[str, float]:
    """Ranks of values, the largest first as 1; equal values share the mean of their ranks (scipy)."""
    from scipy.stats import rankdata

    return dict(zip(values, rankdata([-value for value in values.values()]).tolist(), strict=True))


def pair_outcome(
    first: Mapping[str, float], second: Mapping[str, float], a: str, b: str
) -> Literal["agree", "disagree", "tie"]:
    """How two rankings of one item stand to each other about ``a`` and ``b``."""
    product = (first[a] - first[b]) * (second[a] - second[b])
    return "tie" if product == 0 else "agree" if product > 0 else "disagree"
