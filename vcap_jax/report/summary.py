"""summary.json: what a run came to, with bootstrap intervals over scenes.

Coverage is the share of the true facts that captions state, c / N; hallucination the share of their claims
that are false, (n - c) / n (Section 2 of the paper names the counts). Both are ratios of sums over scenes, so a scene
counts by how much there is to say about it, and scenes, not claims, are what the bootstrap draws: the claims of one
caption are not independent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vcap_jax.report.step_log import replace_file


@dataclass(frozen=True)
class FactCounts:
    """Facts of S scenes and what their captions claim; each an array [S] of counts, added up over a scene's captions.

    facts: N, true facts of the scene. claims: n, facts a caption claims. correct: c, claims that are true.
    captions: how many of the scene were counted.
    """

    facts: np.ndarray
    claims: np.ndarray
    correct: np.ndarray
    captions: np.ndarray

    def __post_init__(self) -> None:
        shapes = {np.shape(x) for x in (self.facts, self.claims, self.correct, self.captions)}
        if len(shapes) != 1 or len(shapes.pop()) != 1:
            raise ValueError("facts, claims, correct and captions must be one-dimensional and of one length")
        if np.any(np.asarray(self.correct) > np.minimum(self.claims, self.facts)):
            raise ValueError(
                "a scene has more correct claims than claims or than facts; count each fact once"
            )


@dataclass(frozen=True)
class Estimate:
    """A ratio and its interval; all NaN where the denominator is 0 over all scenes."""

    value: float
    low: float
    high: float


def ratio(
    numerators: np.ndarray,
    denominators: np.ndarray,
    *,
    level: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Estimate:
    """Ratio of the sums of two [S] arrays, with a percentile bootstrap interval over the S scenes."""
    over, under = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if over.size == 0 or under.sum() == 0:
        return Estimate(math.nan, math.nan, math.nan)
    # How often each scene is drawn is all a resample says, so S counts stand for S drawn scenes.
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(over.size, np.full(over.size, 1 / over.size), size=resamples)
    sums = drawn @ under
    ratios = (drawn @ over)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(over.sum() / under.sum()), float(low), float(high))


def fact_shares(counts: FactCounts) -> dict[str, Any]:
    """One row of the comparison: coverage and hallucination, their intervals, and how much was counted.

    ``claims_per_caption``: facts that a caption claims, on average over all captions of all scenes.
    """
    coverage = ratio(counts.correct, counts.facts)
    hallucination = ratio(np.subtract(counts.claims, counts.correct), counts.claims)
    captions = int(np.sum(counts.captions))
    return {
        "coverage": coverage.value,
        "hallucination": hallucination.value,
        "coverage_interval": [coverage.low, coverage.high],
        "hallucination_interval": [hallucination.low, hallucination.high],
        "claims_per_caption": float(np.sum(counts.claims) / captions) if captions else math.nan,
        "scenes": len(counts.facts),
    }


def comparison(
    references: FactCounts, start: FactCounts, trained: FactCounts, seconds: float, **more: Any
) -> dict[str, Any]:
    """The summary of a run on scenes of known facts: the references, the policy before and after, and the
    time.

    ``more`` adds keys of the caller, for instance ``steps``.
    """
    return {
        "references": fact_shares(references),
        "start": fact_shares(start),
        "trained": fact_shares(trained),
        "seconds": seconds,
        **more,
    }


def write_summary(path: str | Path, summary: Mapping[str, Any]) -> None:
    """Writes a summary atomically. What is not a number (nothing was claimed, say) becomes null."""
    text = json.dumps(_finite(summary), indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(Path(path), (text + "\n").encode())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def comparison_table(summary: Mapping[str, Any]) -> str:
    """The three rows as text for a terminal, in per cent with intervals."""
    return shares_table({row: summary[row] for row in ("references", "start", "trained")})


def shares_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows of ``fact_shares`` by name, as text for a terminal, in per cent with intervals."""
    width = max(12, *(len(name) + 2 for name in rows))
    lines = [f"{'':<{width}}{'facts covered':>24}{'false claims':>24}"]
    for row, shares in rows.items():
        cells = []
        for share in ("coverage", "hallucination"):
            value, bounds = shares[share], shares[f"{share}_interval"]
            if value is None or math.isnan(value):
                cells.append("nothing claimed")
            else:
                cells.append(f"{value:.1%} ({bounds[0]:.1%} to {bounds[1]:.1%})")
        lines.append(f"{row:<{width}}{cells[0]:>24}{cells[1]:>24}")
    return "\n".join(lines)
