"""A judgement that did not happen. It is masked by the trainer and never turned into a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureReason = Literal[
    # the answer arrived and cannot be used
    "cut_off",
    "filtered",
    "empty_answer",
    "no_verdict",
    "broken_json",
    "ambiguous",
    "missing_key",
    "repeated_key",
    "unexpected_key",
    "bad_score",
    "bad_analysis",
    "bad_answer",
    # the answer did not arrive
    "connection",
    "timeout",
    "http_status",
    "bad_response",
    "foreign_answer",
    # the group's own data
    "media",
    "no_reference",
    "no_reference_segment",
    "no_questions",
    # of a family of the user's own
    "other",
]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no score.

    reason: a fixed word, for counting.
    detail: what exactly was found, for reading.
    """

    reason: FailureReason
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"
