"""The claim-difference family, after ClaimDiff-RL (arXiv 2605.20278): errors where caption and reference differ.

The judge lists the differences between the candidate and the reference and settles each by the picture: where the two
texts differ, each of them is right, leaves out something that is there (an omission) or says something that is not (an
invention). One question for each candidate, over the whole picture or video.

The formulas are those of the published program; with all weights 1 they are the same numbers. Beside it: failures are
masked and never scored 0; the mode ``judgment_based`` is left out, for with one verdict on each side it is
``normalized_diff`` again but for its word on the whole; and so are its penalties for hedging and for a missing thought.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pydantic

from vcap_jax.reward.config import ClaimDifferencesConfig, RewardConfig
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.family import FamilyTools
from vcap_jax.reward.group import CandidateScore
from vcap_jax.reward.judge_query import Form
from vcap_jax.reward.one_question import AS_ASKED, OneQuestionReward, load_question, masked, record_form
from vcap_jax.reward.prompts import object_schema
from vcap_jax.reward.question import Verdict
from vcap_jax.reward.templates import DIFFERENCES_KEY

Error = Literal["none", "omission", "invention"]
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


@pydantic.with_config(AS_ASKED)
@dataclass(frozen=True, kw_only=True)
class Differences:
    """The verdict on one caption."""

    differences: tuple[Difference, ...]


class ClaimDifferencesReward(OneQuestionReward[Differences]):
    """Components: ``differences``; ``omissions`` and ``inventions`` of the candidate; ``reference_errors``.

    Raises TemplateError for an instruction that cannot be used.
    """

    def __init__(self, config: RewardConfig, tools: FamilyTools) -> None:
        self._config = config.claim_differences
        most = self._config.most_differences
        template = load_question("claim_differences", self._config.instruction, most=most)
        super().__init__(template, differences_form(template, most), tools)

    def _candidate(
        self, verdict: Verdict[Differences] | None, caption: str, reference: str
    ) -> CandidateScore:
        if verdict is None:
            return CandidateScore(reward=0.0, keys={"global": None})
        if isinstance(verdict.result, Failure):
            return masked(verdict, verdict.result)
        differences = verdict.result.differences
        told = [f"caption {_told(one.caption)}; reference {_told(one.reference)}" for one in differences]
        return CandidateScore(
            reward=claim_reward(differences, self._config),
            components=difference_components(differences),
            notes={"Differences from the reference": "\n".join(told) or "none"},
            keys={"global": verdict.key},
        )


def _told(side: Side) -> str:
    verdict = "right" if side.error == "none" else f"{side.error}, severity {side.severity}"
    return f"{side.claim!r} ({verdict})" if side.claim else f"silent ({verdict})"


def differences_form(template: str, most: int) -> Form[Differences]:
    """The answer that the instruction ``template`` asks for: a list of at most ``most`` differences."""
    side = object_schema(
        {
            "Claim": {"type": "string", "maxLength": _LONGEST_CLAIM},
            "Error": {"type": "string", "enum": list(get_args(Error))},
            "Severity": {"type": "integer", "minimum": 0, "maximum": 3},
        }
    )
    items = object_schema({"Caption": side, "Reference": side})
    schema = object_schema({DIFFERENCES_KEY: {"type": "array", "maxItems": most, "items": items}})
    return record_form(Differences, "claim_differences", template, schema, most=most)


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
    ours = sum(_weight(one.caption, config) for one in differences)
    theirs = sum(_weight(one.reference, config) for one in differences)
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


def _weight(side: Side, config: ClaimDifferencesConfig) -> float:
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
