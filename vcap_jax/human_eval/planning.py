"""How many items a study needs for an interval of a given width; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z = 1.959964


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much a value differs from item to item. variance: of one item's. items: from how many it was found."""

    variance: float
    items: int

    def half_width(self, items: int) -> float:
        """Of the 95% interval of the mean over so many items."""
        return _Z * math.sqrt(self.variance / items)

    def items_for(self, half_width: float) -> int:
        """Items that the mean needs for such an interval."""
        return max(2, math.ceil((_Z / half_width) ** 2 * self.variance))


def spread_of(values: Sequence[Sequence[float]]) -> Spread | None:
    """The spread of a value of which each item has several versions, one as likely as another; None without two items.

    The variance of one item's version: the mean square less the square of the mean, which is itself too large by the
    variance of the mean over items. Unbiased for any number of versions, however much they depend on each other.
    """
    groups = [np.asarray(of, float) for of in values if len(of)]
    if len(groups) < 2:
        return None
    means = np.array([group.mean() for group in groups])
    squares = float(np.mean([(group**2).mean() for group in groups]))
    variance = squares - float(means.mean()) ** 2 + float(means.var(ddof=1)) / len(groups)
    return Spread(variance=max(0.0, variance), items=len(groups))
