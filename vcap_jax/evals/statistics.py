"""Metrics as functions of sums over items, so that each has a bootstrap interval and can be compared in pairs.

A benchmark's figure is seldom a plain mean: a micro average is a ratio of sums, an average over five aspects is a mean
of such ratios, an F1 a harmonic mean of two. All of them are functions of sums of the items' values. A ``Statistic`` is
such a function, for many resamples at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vcap_jax.evals.protocol import Evaluation, Item
from vcap_jax.report.intervals import Value, resampled_together


class Columns:
    """Values of items as arrays, each made once, when it is first asked for."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items
        self._known: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """[S]: the value of each item, 0 where there is none; and 1 where there is one."""
        if name not in self._known:
            values = np.array([item.values.get(name, 0.0) for item in self._items], np.float64)
            there = np.array([name in item.values for item in self._items], np.float64)
            self._known[name] = (values, there)
        return self._known[name]


class Sums:
    """Sums of values over items, for R resamples.

    counts: how often each item is drawn, [R, S]. An item without a value of some name enters none of its sums.
    """

    def __init__(self, columns: Columns, counts: np.ndarray) -> None:
        self._columns, self._counts = columns, counts
        self._known: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def total(self, name: str) -> np.ndarray:
        """[R]: the sum of a value over the items that have it."""
        return self._both(name)[0]

    def number(self, name: str) -> np.ndarray:
        """[R]: how many items have the value."""
        return self._both(name)[1]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the values that were asked for."""
        return tuple(self._known)

    def _both(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name not in self._known:
            values, there = self._columns.of(name)
            self._known[name] = (self._counts @ values, self._counts @ there)
        return self._known[name]


Statistic = Callable[[Sums], np.ndarray]
"""Gives R values for the sums of R resamples; NaN where there is nothing to measure."""


def mean(name: str, *, scale: float = 1.0) -> Statistic:
    """The mean of a value over the items that have it, times ``scale``."""
    return lambda sums: scale * _divided(sums.total(name), sums.number(name))


def ratio(over: str, under: str, *, scale: float = 1.0) -> Statistic:
    """The ratio of the sums of two values (a micro average), times ``scale``."""
    return lambda sums: scale * _divided(sums.total(over), sums.total(under))


@dataclass(frozen=True)
class Combined:
    """A statistic of others (implements ``Statistic``). value: of theirs, [P, R].

    apart: each part is of other samples (the sources of a benchmark), so that the whole is of all these together;
    otherwise the parts are of the same samples (the stages), and the whole is of no more than the part with the fewest.
    """

    parts: tuple[Statistic, ...]
    value: Callable[[np.ndarray], np.ndarray]
    apart: bool = False

    def __call__(self, sums: Sums) -> np.ndarray:
        return self.value(np.array([part(sums) for part in self.parts]))


def average(*parts: Statistic, apart: bool = False) -> Statistic:
    """The plain mean of statistics; NaN where one of them is. apart: see ``Combined``."""
    return Combined(parts, lambda values: values.mean(axis=0), apart)


def average_of_present(*parts: Statistic) -> Statistic:
    """The plain mean of those statistics, each of other samples, that measure something; NaN where none does."""

    def value(values: np.ndarray) -> np.ndarray:
        there = ~np.isnan(values)
        return _divided(np.where(there, values, 0.0).sum(axis=0), there.sum(axis=0))

    return Combined(parts, value, apart=True)


def harmonic(first: Statistic, second: Statistic) -> Statistic:
    """2ab / (a + b), which is 0 where both are 0."""

    def value(values: np.ndarray) -> np.ndarray:
        a, b = values
        return np.where(a + b == 0, 0.0, _divided(2 * a * b, a + b))

    return Combined((first, second), value)


Cluster = Callable[[str], str]
"""What an item is of, by its id: several items of one video are not independent, and are drawn together. An item that
says what it is ``of`` is of that."""


def alone(identity: str) -> str:
    """The cluster of an item that is independent of all others."""
    return identity


def evaluated(
    items: Sequence[Item], statistics: Mapping[str, Statistic], *, cluster: Cluster = alone
) -> dict[str, Value]:
    """Each statistic over the items without failure, with its interval over clusters (``intervals.resampled``). ``n``
    of each is the number of clusters that have a value which it uses, of a combined one as ``Combined`` says."""
    whole = [item for item in items if item.failure is None]
    number, places = _places(whole, cluster)
    columns = Columns(whole)

    def measured(counts: np.ndarray) -> dict[str, np.ndarray]:
        sums = Sums(columns, counts[:, places])
        return {name: statistic(sums) for name, statistic in statistics.items()}

    found = resampled_together(measured, number)
    return {name: replace(found[name], n=_used(of, places, columns)) for name, of in statistics.items()}


def paired_differences(
    first: Sequence[Item],
    second: Sequence[Item],
    statistics: Mapping[str, Statistic],
    *,
    cluster: Cluster = alone,
) -> dict[str, Value]:
    """Each statistic of ``second`` minus that of ``first``, over the items that both have without failure.

    Both are drawn alike, so that what the items have in common (easy ones, hard ones) cancels: the interval is that of
    the difference. ``n`` is as that of ``evaluated``, of clusters that have the value both times.
    """
    ours = {item.id: item for item in first if item.failure is None}
    theirs = {item.id: item for item in second if item.failure is None}
    common = [name for name in ours if name in theirs]
    a, b = [ours[name] for name in common], [theirs[name] for name in common]
    # Of the later ones: what a resumed run wrote first may not say yet what its items are of.
    number, places = _places(b, cluster)
    before, after = Columns(a), Columns(b)

    def differences(counts: np.ndarray) -> dict[str, np.ndarray]:
        earlier, later = Sums(before, counts[:, places]), Sums(after, counts[:, places])
        return {name: statistic(later) - statistic(earlier) for name, statistic in statistics.items()}

    found = resampled_together(differences, number)
    return {name: replace(found[name], n=_used(of, places, before, after)) for name, of in statistics.items()}


def of_smallest_part(
    items: Sequence[Item], statistics: Mapping[str, Statistic], *, cluster: Cluster = alone
) -> dict[str, int]:
    """Of each statistic how many clusters its smallest part is of: a mean over sources is of all of these together
    (``n``), and yet no surer than one of them makes it, for each counts alike."""
    _, places = _places(items, cluster)
    columns = Columns(items)
    return {name: _used(of, places, columns, smallest=True) for name, of in statistics.items()}


def changes_of_means(start: Evaluation, later: Evaluation) -> dict[str, Value]:
    """Of those metrics of ``later`` that are plain means of the items' values of the same name, both times: by how much
    they differ from ``start``, over the items that have the value both times."""
    changes: dict[str, Value] = {}
    for name in later.metrics:
        ours, theirs = ({i.id: i for i in of.items if name in i.values} for of in (start, later))
        both = [one for one in ours if one in theirs]
        if both and _is_mean(name, start) and _is_mean(name, later):
            before, after = [ours[one] for one in both], [theirs[one] for one in both]
            changes |= paired_differences(before, after, {name: mean(name)})
    return changes


def _is_mean(name: str, evaluation: Evaluation) -> bool:
    """Whether a metric is that, and not something else of that name, or in per cent."""
    values = [item.values[name] for item in evaluation.items if name in item.values]
    metric = evaluation.metrics.get(name)
    return metric is not None and math.isclose(
        sum(values) / len(values), metric.value, rel_tol=1e-9, abs_tol=1e-12
    )


def _places(items: Sequence[Item], cluster: Cluster) -> tuple[int, np.ndarray]:
    """How many clusters there are, and the place of each item's among them, [S]."""
    found: dict[str, int] = {}
    places = [found.setdefault(item.of or cluster(item.id), len(found)) for item in items]
    return len(found), np.array(places, np.int64)


def _used(statistic: Statistic, places: np.ndarray, *of: Columns, smallest: bool = False) -> int:
    """How many clusters have an item with a value that a statistic uses, in all of several columns. smallest: of the
    smallest part, also of parts that are apart; one without a value is none of these."""
    if isinstance(statistic, Combined) and (smallest or not statistic.apart):
        parts = [_used(part, places, *of, smallest=smallest) for part in statistic.parts]
        return min((n for n in parts if n or not statistic.apart), default=0)
    asked = Sums(of[0], np.ones((1, len(places)), np.int64))
    statistic(asked)
    there = np.zeros(len(places), bool)
    for name in asked.names:
        there |= np.all([columns.of(name)[1] > 0 for columns in of], axis=0)
    return len(np.unique(places[there]))


def _divided(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(under == 0, np.nan, over / under)
