"""Whether a judge's analysis and its scores contradict each other: a heuristic on English text, pure.

Two things count. A clause that states an error or an omission beside a full mark for Correctness or Completeness; and
an analysis that finds nothing wrong beside a Correctness of ``LOW`` or less. It is made to be silent in doubt:
quotations are left out, for they may be the candidate's own words, and so are clauses that deny ("no errors", "nothing
is missing"), speak of the reference, hedge, or call the matter small. Analyses in other languages are never counted.
"""

from __future__ import annotations

import re

from vcap_jax.reward.scores import MAX_SCORE, Scores

LOW = 3
"""The highest Correctness that an analysis without any fault contradicts."""

_QUOTED = re.compile(r"\"[^\"\n]*\"|\u201c[^\u201d\n]*\u201d|(?<!\w)'[^'\n]*'(?!\w)")
_CLAUSE = re.compile(r"[.;!?\n]+|,? (?:but|however|although|though|while|whereas) ", re.IGNORECASE)
_ERROR = re.compile(
    r"\b(?:incorrect(?:ly)?|inaccurate(?:ly)?|wrong(?:ly)?|mistaken(?:ly)?|mistakes?|errors?|false(?:ly)?|refutes?|"
    r"contradicts?|hallucinat\w+|invents?|invented|fabricat\w+|misidentif\w+|misstates?)\b",
    re.IGNORECASE,
)
_OMISSION = re.compile(
    r"\b(?:omits?|omitted|omissions?|leaves? out|left out|fails? to (?:mention|describe)|"
    r"(?:does|do|did) not (?:mention|describe))\b",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"n't\b|\b(?:no|not|none|nothing|never|neither|nor|without|hardly|free of|zero|any|if|whether|could|might|may|"
    r"would|seems?|appears?|apparent(?:ly)?|possib\w+|arguabl\w+|reference|witness|minor|slight\w*|trivial|negligible|"
    r"small(?:er)? (?:error|mistake|omission)\w*)\b",
    re.IGNORECASE,
)
_SAID_NOT = re.compile(r"\b(?:does|do|did) not (?:mention|describe)\b", re.IGNORECASE)
_CLEAN = re.compile(
    r"\b(?:no|without(?: any)?|free of(?: any)?)\b[^.;\n]{0,30}\b(?:problem|error|mistake|issue|inaccurac(?:y|ie)|"
    r"fault)s?\b|\b(?:fully|completely|entirely|perfectly) (?:correct|accurate)\b",
    re.IGNORECASE,
)


def contradiction(scores: Scores) -> str | None:
    """What does not go together, in words; None where nothing is certain."""
    clauses = _CLAUSE.split(_QUOTED.sub(" ", scores.analysis))
    errors = [clause for clause in clauses if _states(_ERROR, clause)]
    omissions = [clause for clause in clauses if _states(_OMISSION, clause)]
    if errors and scores.correctness == MAX_SCORE:
        return f"Correctness {MAX_SCORE} beside {errors[0].strip()!r}"
    if omissions and scores.completeness == MAX_SCORE:
        return f"Completeness {MAX_SCORE} beside {omissions[0].strip()!r}"
    if scores.correctness <= LOW and not errors and not omissions and _only_clean(clauses):
        return f"Correctness {scores.correctness} beside an analysis that finds nothing wrong"
    return None


def _states(fault: re.Pattern[str], clause: str) -> bool:
    """Whether a clause affirms a fault. The "not" of "does not mention" is part of one."""
    return bool(fault.search(clause)) and not _DOUBT.search(_SAID_NOT.sub(" ", clause))


def _only_clean(clauses: list[str]) -> bool:
    """Whether something is called faultless, and nothing else is said that could be a fault."""
    said = [clause for clause in clauses if clause.strip()]
    return bool(said) and all(_CLEAN.search(clause) for clause in said)
