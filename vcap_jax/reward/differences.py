"""Differences between a caption and its reference, checked against the picture, and what they are worth. Pure.

The unit of ClaimDiff-RL (arXiv 2605.20278): where the two texts differ, each of them is right, leaves out something
that is there (an omission) or says something that is not (an invention). The formulas are those of its published
program; with all weights 1 they are the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pydantic

from vcap_jax.reward.config import ClaimDifferencesConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.judge_query import Form, schema_form
from vcap_jax.reward.one_question import AS_ASKED, read_answer, too_many
from vcap_jax.reward.prompts import object_schema
from vcap_jax.reward.templates import DIFFERENCES_KEY
from vcap_jax.system.json_records import as_record, record_values
from vcap_jax.system.json_values import JsonObject

Error = Literal["none", "omission", "invention"]
_SIDES = ("Caption", "Reference")
_LONGEST_CLAIM = 160
_MOST_ERRORS = 10
"""Errors at which the modes that count them reach their end."""


@pydantic.with_config(AS_ASKED)
@dataclass(frozen=True, kw_only=True)
class Side:
    """One text's part in a difference.

    claim: what it says, "" where it says nothing. error: "none" where it is right. severity: 1 (a detail) to 3 (a main
    subject) of an error; 0 without one.
    """

    claim: str
    error: Error
    severity: int

    def __post_init__(self) -> None:
        low, high = (0, 0) if self.error == "none" else (1, 3)
        if not low <= self.severity <= high:
            raise ValueError(
                f"severity {self.severity} of the error {self.error}: 1 to 3, and 0 without an error"
            )


@pydantic.with_config(AS_ASKED)
@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that the two texts tell differently, or that only one of them tells."""

    caption: Side
    reference: Side


Differences = tuple[Difference, ...]


@pydantic.with_config(AS_ASKED)
@dataclass(frozen=True, kw_only=True)
class _Answer:
    differences: Differences


def claim_reward(differences: Sequence[Difference], config: ClaimDifferencesConfig) -> float:
    """The reward of the caption from its differences to the reference, 0 to 1.

    With n the weighted errors of the caption over the largest weight, m those of the reference and D differences:

    * ``normalized_diff``: ``0.5 - 0.5 clip((n - m) / D, -1, 1)``; 0.5 for D = 0;
    * ``raw_diff``: ``0.5 - 0.5 clip((n - m) / 10, -1, 1)``, n and m not divided by the largest weight;
    * ``normalized_a_only``: ``(0.05 + 0.95 (1 - n / D)^2) exp(-n / 4) (0.7 + 0.3 min(1, ln(1 + D) / ln 11))``; 1 for
      D = 0;
    * ``a_only``: ``1 - min(n, 10) / 10``;
    * ``hall_vs_miss``: ``1 - n / D``; 1 for D = 0.
    """
    total = len(differences)
    ours = sum(error_weight(one.caption, config) for one in differences)
    theirs = sum(error_weight(one.reference, config) for one in differences)
    count = ours / config.heaviest
    match config.mode:
        case "raw_diff":
            return 0.5 - 0.5 * _clipped((ours - theirs) / _MOST_ERRORS)
        case "a_only":
            return 1 - min(count, _MOST_ERRORS) / _MOST_ERRORS
        case "normalized_diff":
            return 0.5 - 0.5 * _clipped((ours - theirs) / (config.heaviest * total)) if total else 0.5
        case "hall_vs_miss":
            return 1 - count / total if total else 1.0
        case "normalized_a_only":
            if not total:
                return 1.0
            free = 1 - count / total
            many = min(1.0, math.log1p(total) / math.log1p(_MOST_ERRORS))
            return (0.05 + 0.95 * free**2) * math.exp(-count / 4) * (0.7 + 0.3 * many)


def error_weight(side: Side, config: ClaimDifferencesConfig) -> float:
    """What an error counts; 0 without one."""
    if side.error == "none":
        return 0.0
    kind = config.omission if side.error == "omission" else config.invention
    return kind * config.severity_weights[side.severity - 1]


def _clipped(value: float) -> float:
    return min(max(value, -1.0), 1.0)


def difference_components(differences: Sequence[Difference]) -> dict[str, float]:
    """Counts by the names of the family's components."""
    errors = [one.caption.error for one in differences]
    return {
        "differences": float(len(differences)),
        "omissions": float(errors.count("omission")),
        "inventions": float(errors.count("invention")),
        "reference_errors": float(sum(one.reference.error != "none" for one in differences)),
    }


def differences_schema(most: int) -> JsonObject:
    """JSON schema of the answer: a list of at most ``most`` differences."""
    side = object_schema(
        {
            "Claim": {"type": "string", "maxLength": _LONGEST_CLAIM},
            "Error": {"type": "string", "enum": list(get_args(Error))},
            "Severity": {"type": "integer", "minimum": 0, "maximum": 3},
        }
    )
    items = object_schema(dict.fromkeys(_SIDES, side))
    return object_schema({DIFFERENCES_KEY: {"type": "array", "maxItems": most, "items": items}})


def differences_form(template: str, most: int) -> Form[Differences]:
    """The answer that the instruction ``template`` asks for."""
    return schema_form(
        "claim_differences",
        template,
        differences_schema(most),
        read=lambda content, finish: parse_differences(content, most, finish),
        pack=lambda differences: record_values(_Answer(differences=differences)),
        unpack=lambda kept: as_record(_Answer, kept, "a kept answer").differences,
    )


def parse_differences(text: str | None, most: int, finish_reason: str | None) -> Differences | Failure:
    """Read an answer; a Failure unless every difference has both sides, each with a known error and its severity."""

    answer = read_answer(_Answer, text, finish_reason)
    if isinstance(answer, Failure):
        return answer
    return too_many({DIFFERENCES_KEY: answer.differences}, most) or answer.differences
