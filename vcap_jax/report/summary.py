"""summary.json: what a run came to, with bootstrap intervals over scenes.

Coverage is the share of the true facts that captions state, c / N; hallucination the share of their claims
that are false, (n - c) / n (Section 2 of the paper names the counts). Both are ratios of sums over scenes, so a scene
counts by how much there is to say about it, and scenes, not claims, are what the bootstrap draws: the claims of one
caption are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from typing_extensions import TypedDict

from vcap_jax.report.intervals import Value, ratio
from vcap_jax.system.files import write_json
from vcap_jax.system.json_records import array_of

Counts = Annotated[np.ndarray, array_of(np.int64)]


@dataclass(frozen=True)
class FactCounts:
    """Facts of S scenes and what their captions claim; each an array [S] of counts, added up over a scene's captions.

    facts: N, true facts of the scene. claims: n, facts a caption claims. correct: c, claims that are true.
    captions: how many of the scene were counted.
    """

    facts: Counts
    claims: Counts
    correct: Counts
    captions: Counts

    def __post_init__(self) -> None:
        shapes = {np.shape(x) for x in (self.facts, self.claims, self.correct, self.captions)}
        if len(shapes) != 1 or len(shapes.pop()) != 1:
            raise ValueError("facts, claims, correct and captions must be one-dimensional and of one length")
        if np.any(np.asarray(self.correct) > np.minimum(self.claims, self.facts)):
            raise ValueError(
                "a scene has more correct claims than claims or than facts; count each fact once"
            )


def fact_values(counts: FactCounts) -> dict[str, Value]:
    """coverage, hallucination and claims_per_caption (facts that a caption claims, on average over all captions of all
    scenes), each with its interval over the S scenes."""
    return {
        "coverage": ratio(counts.correct, counts.facts),
        "hallucination": ratio(np.subtract(counts.claims, counts.correct), counts.claims),
        "claims_per_caption": ratio(counts.claims, counts.captions),
    }


class FactRow(TypedDict):
    """One row of a comparison. Shares and their intervals are null where nothing was claimed; read from a summary.json
    they are that, made in this process they are NaN."""

    coverage: float | None
    hallucination: float | None
    coverage_interval: Sequence[float | None]
    hallucination_interval: Sequence[float | None]
    claims_per_caption: float | None
    scenes: int


Share = Literal["coverage", "hallucination"]


def fact_row(values: Mapping[str, Value]) -> FactRow:
    """One row of a comparison, out of ``fact_values``: the values, the intervals of the two shares, how many scenes."""
    coverage, hallucination = values["coverage"], values["hallucination"]
    return {
        "coverage": coverage.value,
        "hallucination": hallucination.value,
        "coverage_interval": [coverage.low, coverage.high],
        "hallucination_interval": [hallucination.low, hallucination.high],
        "claims_per_caption": values["claims_per_caption"].value,
        "scenes": coverage.n,
    }


def measured_share(row: FactRow, share: Share) -> tuple[float, float, float] | None:
    """A share of a row with the ends of its interval; None where nothing was claimed."""
    value = row[share]
    low, high = row["coverage_interval"] if share == "coverage" else row["hallucination_interval"]
    if value is None or low is None or high is None or math.isnan(value):
        return None
    return value, low, high


def fact_shares(counts: FactCounts) -> FactRow:
    """``fact_row`` of counts."""
    return fact_row(fact_values(counts))


def write_summary(path: str | Path, summary: Mapping[str, object]) -> None:
    """Writes a summary atomically, dataclasses in it as objects. What is not a number (nothing was claimed, say)
    becomes null."""
    write_json(Path(path), _plain(summary))


def _plain(value: object) -> object:
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def shares_table(rows: Mapping[str, FactRow]) -> str:
    """Rows of ``fact_shares`` by name, as text for a terminal, in per cent with intervals."""
    width = max(12, *(len(name) + 2 for name in rows))
    lines = [f"{'':<{width}}{'facts covered':>24}{'false claims':>24}"]
    for row, shares in rows.items():
        cells = []
        for measured in (measured_share(shares, "coverage"), measured_share(shares, "hallucination")):
            if measured is None:
                cells.append("nothing claimed")
            else:
                value, low, high = measured
                cells.append(f"{value:.1%} ({low:.1%} to {high:.1%})")
        lines.append(f"{row:<{width}}{cells[0]:>24}{cells[1]:>24}")
    return "\n".join(lines)
