"""How many items and annotators a study needs for an interval of a given width; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_Z = 1.959964


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Variances of a value that annotators give items: between items, and between annotators within one."""

    between: float
    within: float

    def half_width(self, items: int, annotators: int) -> float:
        """Of the 95% interval of the mean over so many items, with so many annotators for each."""
        return _Z * math.sqrt((self.between + self.within / annotators) / items)

    def items_for(self, half_width: float, annotators: int) -> int:
        """Items that the mean needs for such an interval, with so many annotators for each."""
        return max(2, math.ceil((_Z / half_width) ** 2 * (self.between + self.within / annotators)))


def spread_of(values: Mapping[str, Sequence[float]]) -> Spread | None:
    """The two variances by one-way analysis of variance, from the values of each item.

    None without two items and without an item that several have. Items may have different numbers of values.
    Source: Searle, Casella and McCulloch, Variance Components, section 3.6 (unbalanced data).
    """
    groups = [np.asarray(of, float) for of in values.values() if len(of)]
    total = sum(map(len, groups))
    if len(groups) < 2 or total == len(groups):
        return None
    grand = sum(group.sum() for group in groups) / total
    within = sum(((group - group.mean()) ** 2).sum() for group in groups) / (total - len(groups))
    between = sum(len(group) * (group.mean() - grand) ** 2 for group in groups) / (len(groups) - 1)
    size = (total - sum(len(group) ** 2 for group in groups) / total) / (len(groups) - 1)
    return Spread(between=max(0.0, float((between - within) / size)), within=float(within))
