"""The judge's verdict: three integers from 0 to 10 and an analysis, read from what a model really writes.

What may stand around the one JSON object, and which answers are refused as a whole: ``json_objects``. Its keys may have
any order. Everything else is refused, and refused means a :class:`Failure`, never a number:

* no object with a score key, or more than one: a second object may be a draft, an echo of the output format or a
  quotation of the candidate, and nothing tells which is meant;
* an object that does not parse anywhere in the answer, even beside a good one: it may be a verdict whose unescaped
  quotation of the candidate holds the good one;
* missing, repeated, misspelt or additional keys, an analysis that is not a string;
* a score that is not a JSON integer from 0 to 10: ``8.0``, ``"8"``, ``true``, ``null``, ``8/10``, ``11``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vcap_jax.reward.failures import Failure, FailureReason
from vcap_jax.reward.json_objects import head, one_object
from vcap_jax.reward.templates import ANALYSIS_KEY, GLOBAL_VIDEO_KEYS, QUALITY_KEYS
from vcap_jax.system.json_values import JsonObject, as_text, as_whole

MAX_SCORE = 10


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One verdict.

    correctness, completeness: 0..10.
    third: 0..10, Text Quality, or Reasonability in the global pass over a video (``third_key`` says which).
    """

    analysis: str
    correctness: int
    completeness: int
    third: int
    third_key: Literal["Text Quality", "Reasonability"]

    def by_key(self) -> dict[str, int]:
        """The scores under the judge's own keys."""
        return {
            "Correctness": self.correctness,
            "Completeness": self.completeness,
            self.third_key: self.third,
        }

    def by_name(self) -> dict[str, int]:
        """The scores by the names of the reward's components."""
        return {key.lower().replace(" ", "_"): value for key, value in self.by_key().items()}

    def as_answer(self) -> dict[str, str | int]:
        """The verdict as the JSON object that was asked for."""
        return {ANALYSIS_KEY: self.analysis, **self.by_key()}


def scores_of(answer: JsonObject) -> Scores:
    """The verdict that :meth:`Scores.as_answer` gave."""
    scores = {key: as_whole(value, f"the kept {key}") for key, value in answer.items() if key != ANALYSIS_KEY}
    return _scores(as_text(answer[ANALYSIS_KEY], f"the kept {ANALYSIS_KEY}"), scores)


def full_scores() -> Scores:
    """Full marks."""
    return _scores("", dict.fromkeys(QUALITY_KEYS, MAX_SCORE))


def zero_scores(score_keys: Sequence[str], analysis: str) -> Scores:
    """All zero: what a candidate earns that gives the judge nothing to read."""
    return _scores(analysis, dict.fromkeys(score_keys, 0))


def parse_scores(text: str | None, score_keys: Sequence[str], finish_reason: str | None) -> Scores | Failure:
    """Read one verdict with exactly ``score_keys`` (see the module's docstring for what is accepted).

    text: the content of the answer.
    finish_reason: as the server gave it; None where it gives none.
    """
    if set(score_keys) not in (set(QUALITY_KEYS), set(GLOBAL_VIDEO_KEYS)) or len(score_keys) != 3:
        raise ValueError(f"unknown score keys {tuple(score_keys)}")
    row = one_object(text, finish_reason, score_keys)
    if isinstance(row, Failure):
        return row
    expected = (ANALYSIS_KEY, *score_keys)

    def refuse(reason: FailureReason, detail: str) -> Failure:
        return Failure(reason=reason, detail=f"{detail} (keys: {', '.join(map(repr, list(row)[:12]))})")

    if missing := [key for key in expected if key not in row]:
        return refuse("missing_key", f"missing: {', '.join(missing)}")
    if extra := [key for key in row if key not in expected]:
        return refuse("unexpected_key", f"not asked for: {', '.join(extra)}")
    scores: dict[str, int] = {}
    for key in score_keys:
        value = row[key]
        if type(value) is not int or not 0 <= value <= MAX_SCORE:
            return refuse("bad_score", f"{key} is {head(repr(value))}, not an integer from 0 to {MAX_SCORE}")
        scores[key] = value
    analysis = row[ANALYSIS_KEY]
    if not isinstance(analysis, str):
        return refuse("bad_analysis", f"{ANALYSIS_KEY} is a {type(analysis).__name__}, not a string")
    return _scores(analysis, scores)


def _scores(analysis: str, values: dict[str, int]) -> Scores:
    third_key: Literal["Text Quality", "Reasonability"] = (
        "Reasonability" if "Reasonability" in values else "Text Quality"
    )
    return Scores(
        analysis=analysis,
        correctness=values["Correctness"],
        completeness=values["Completeness"],
        third=values[third_key],
        third_key=third_key,
    )
