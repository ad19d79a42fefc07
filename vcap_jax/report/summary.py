"""summary.json: what a run came to, with bootstrap intervals over scenes.

Coverage is the share of the true facts that captions state, c / N; hallucination the share of their claims
that are false, (n - c) / n (Section 2 of the paper names the counts); the invented share that of claims about objects
where nothing lies, which are a part of the false ones. All are ratios of sums over scenes, so a scene counts by how
much there is to say about it, and scenes, not claims, are what the bootstrap draws: the claims of one caption are not
independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from vcap_jax.report.intervals import Value, ratio
from vcap_jax.report.pages import text_table
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


@dataclass(frozen=True)
class InventionCounts(FactCounts):
    """invented: [S], the claims about objects where nothing lies."""

    invented: Counts

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.shape(self.invented) != np.shape(self.claims):
            raise ValueError("inventions must be counted for each scene")


def fact_values(counts: InventionCounts) -> dict[str, Value]:
    """coverage, hallucination, claims_per_caption (facts that a caption claims, on average over all captions of all
    scenes) and invented_share, each with its interval over the S scenes."""
    return {
        "coverage": ratio(counts.correct, counts.facts),
        "hallucination": ratio(np.subtract(counts.claims, counts.correct), counts.claims),
        "claims_per_caption": ratio(counts.claims, counts.captions),
        "invented_share": ratio(counts.invented, counts.claims),
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
    invented_share: float | None
    invented_share_interval: Sequence[float | None]


Share = Literal["coverage", "hallucination", "invented_share"]


def fact_row(values: Mapping[str, Value]) -> FactRow:
    """One row of a comparison, out of ``fact_values``: the values, the intervals of the shares, how many scenes."""
    coverage, hallucination, invented = (values[share] for share in get_args(Share))
    return {
        "coverage": coverage.value,
        "hallucination": hallucination.value,
        "coverage_interval": [coverage.low, coverage.high],
        "hallucination_interval": [hallucination.low, hallucination.high],
        "claims_per_caption": values["claims_per_caption"].value,
        "scenes": coverage.n,
        "invented_share": invented.value,
        "invented_share_interval": [invented.low, invented.high],
    }


def measured_share(row: FactRow, share: Share) -> tuple[float, float, float] | None:
    """A share of a row with the ends of its interval; None where nothing was claimed."""
    intervals = {
        "coverage": row["coverage_interval"],
        "hallucination": row["hallucination_interval"],
        "invented_share": row["invented_share_interval"],
    }
    value, (low, high) = row[share], intervals[share]
    if value is None or low is None or high is None or math.isnan(value):
        return None
    return value, low, high


def fact_shares(counts: InventionCounts) -> FactRow:
    """``fact_row`` of counts."""
    return fact_row(fact_values(counts))


def write_summary(path: str | Path, summary: Mapping[str, object]) -> None:
    """Writes a summary atomically, dataclasses in it as objects and NumPy's numbers as numbers. What is not a number
    (nothing was claimed, say) becomes null."""
    write_json(Path(path), to_jsonable_python(summary, inf_nan_mode="null", fallback=np.generic.item))


def shares_table(rows: Mapping[str, FactRow]) -> str:
    """Rows of ``fact_shares`` by name, as text for a terminal, in per cent with intervals."""
    columns: dict[Share, str] = {
        "coverage": "facts covered",
        "hallucination": "false claims",
        "invented_share": "of objects not there",
    }
    lines = [["", *columns.values()]]
    for row, shares in rows.items():
        cells = []
        for share in columns:
            measured = measured_share(shares, share)
            if measured is None:
                cells.append("nothing claimed")
            else:
                value, low, high = measured
                cells.append(f"{value:.1%} ({low:.1%} to {high:.1%})")
        lines.append([row, *cells])
    return text_table(lines, numbers=True)
