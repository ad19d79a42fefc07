"""The judge's verdict: three integers from 0 to 10 and an analysis, read from what a model really writes.

Accepted around the one JSON object: code fences, prose before and after, a ``<think>`` block, a comma after
the last entry, raw line breaks inside the analysis, any order of the keys. Everything else is refused, and
refused means a :class:`Failure`, never a number:

* an answer the server reports as cut off, filtered or aborted, and one that stops inside its object;
* no object with a score key, or more than one: a second object may be a draft, an echo of the output format
  or a quotation of the candidate, and nothing tells which is meant;
* an object that does not parse anywhere in the answer, even beside a good one: it may be a verdict whose
  unescaped quotation of the candidate holds the good one;
* missing, repeated, misspelt or additional keys, an analysis that is not a string;
* a score that is not written as a JSON integer from 0 to 10: ``8.0``, ``"8"``, ``true``, ``null``, ``8/10``,
  ``11``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vcap_jax.reward.failures import Failure, FailureReason
from vcap_jax.reward.templates import ANALYSIS_KEY, GLOBAL_VIDEO_KEYS, QUALITY_KEYS

MAX_SCORE = 10

_OBJECT_BEGINS = re.compile(r"""\{\s*["']""")  # the second as Python would write it
_THOUGHT_END = "</think>"
_CUT_OFF = ("length", "max_tokens")
_STOPPED = {"content_filter": "filtered", "abort": "filtered", "error": "filtered", "refusal": "filtered"}


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
    if finish_reason in _CUT_OFF:
        return Failure(reason="cut_off", detail=f"the answer reached its token limit: {_tail(text or '')}")
    if finish_reason in _STOPPED:
        return Failure(reason="filtered", detail=f"the server ended the answer with {finish_reason!r}")
    if text is None or not text.strip():
        return Failure(reason="empty_answer", detail="the judge wrote nothing")
    spoken = text if _is_one_object(text) else _without_thought(text)
    if spoken is None:
        return Failure(reason="cut_off", detail=f"the answer ends inside its <think> block: {_tail(text)}")
    objects = _objects(spoken)
    if isinstance(objects, Failure):
        return objects
    verdicts = [pairs for pairs in objects if any(key in score_keys for key, _ in pairs)]
    if not verdicts:
        return Failure(
            reason="no_verdict", detail=f"no JSON object with {_listed(score_keys)} in: {_head(spoken)}"
        )
    if len(verdicts) > 1:
        return Failure(reason="ambiguous", detail=f"{len(verdicts)} JSON objects with scores in one answer")
    return _validated(verdicts[0], score_keys)


def _validated(pairs: list[tuple[str, Any]], score_keys: Sequence[str]) -> Scores | Failure:
    keys = [key for key, _ in pairs]
    expected = (ANALYSIS_KEY, *score_keys)

    def refuse(reason: FailureReason, detail: str) -> Failure:
        return Failure(reason=reason, detail=f"{detail} (keys: {', '.join(map(repr, keys[:12]))})")

    if repeated := sorted({key for key in keys if keys.count(key) > 1}):
        return refuse("repeated_key", f"repeated: {_listed(repeated)}")
    if missing := [key for key in expected if key not in keys]:
        return refuse("missing_key", f"missing: {_listed(missing)}")
    if extra := [key for key in keys if key not in expected]:
        return refuse("unexpected_key", f"not asked for: {_listed(extra)}")
    values = dict(pairs)
    for key in score_keys:
        value = values[key]
        if type(value) is not int or not 0 <= value <= MAX_SCORE:
            return refuse("bad_score", f"{key} is {_head(repr(value))}, not an integer from 0 to {MAX_SCORE}")
    analysis = values[ANALYSIS_KEY]
    if not isinstance(analysis, str):
        return refuse("bad_analysis", f"{ANALYSIS_KEY} is a {type(analysis).__name__}, not a string")
    # An escaped lone surrogate is legal JSON and would break whoever writes the analysis to a file.
    readable = analysis.encode("utf-8", "replace").decode("utf-8")
    return _scores(readable, {key: values[key] for key in score_keys})


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


def _is_one_object(text: str) -> bool:
    """Whether the whole answer is an object, as under an enforced schema: "</think>" is then a quotation inside it."""
    text = text.strip()
    try:
        return text.startswith("{") and _DECODER.raw_decode(text)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def _without_thought(text: str) -> str | None:
    """The answer after its thoughts; None if it never leaves them.

    Some chat templates put the opening tag into the prompt, so only the closing one need be there.
    """
    _, end, after = text.rpartition(_THOUGHT_END)
    spoken = after if end else text
    return None if "<think>" in spoken.split("{", 1)[0] else spoken


class _Object(list[tuple[str, Any]]):
    """A parsed JSON object with its repeated keys kept; a type of its own to tell it from a JSON list."""


# strict=False: models write raw line breaks into the analysis.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_Object)


def _objects(text: str) -> list[_Object] | Failure:
    """The outermost JSON objects of the text, or a failure if one of them is broken."""
    found: list[_Object] = []
    position = 0
    while (brace := text.find("{", position)) >= 0:
        if not _OBJECT_BEGINS.match(text, brace):  # {}, or a brace in prose
            position = brace + 1
            continue
        decoded = _decode(text, brace)
        if decoded is None:
            cut = _object_end(text, brace) is None
            detail = (
                "stops inside its JSON object: " + _tail(text)
                if cut
                else "has a broken JSON object: " + _head(text)
            )
            return Failure(reason="cut_off" if cut else "broken_json", detail=f"the answer {detail}")
        value, position = decoded
        found.append(value)
    return found


def _decode(text: str, start: int) -> tuple[_Object, int] | None:
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        pass
    end = _object_end(text, start)
    if end is None:
        return None
    try:
        return _DECODER.decode(_without_trailing_commas(text[start:end])), end
    except (ValueError, RecursionError):
        return None


# An unterminated string counts up to the end of the text, or looking for its end would start at every quote.
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_TOKEN = re.compile(rf"{_STRING}|[{{}}]", re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*+[}}\]])", re.DOTALL)


def _object_end(text: str, start: int) -> int | None:
    """Index after the brace that closes the one at ``start``, minding strings; None if there is none."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token.group() == "{":
            depth += 1
        elif token.group() == "}":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _without_trailing_commas(text: str) -> str:
    return _STRING_OR_TRAILING_COMMA.sub(lambda match: match.group(1) or "", text)


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)


def _head(text: str, limit: int = 160) -> str:
    text = " ".join(text[: 2 * limit].split())
    return text if len(text) <= limit else text[:limit] + "..."


def _tail(text: str, limit: int = 160) -> str:
    text = " ".join(text[-2 * limit :].split())
    return text if len(text) <= limit else "..." + text[-limit:]
