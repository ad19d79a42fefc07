"""Multiple choice: which option an answer in words gives.

Nothing is guessed. An answer that names no option, or two of them, gives None, and whoever asked decides what that
means: another model that matches answers to options, or a wrong answer. Two readers of public harnesses, measured on
the same answers: one takes "The answer is B because A dog" for A and nothing for "(b)", another "blue" for B.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase

LETTERS = ascii_uppercase

_AFTER_A_LETTER = (
    r"because|since|as|for|and|or|but|not|which|that|is|was|would|seems|due|given|based|here|in|from|the"
)
# "A dog" has an article, "A because" a letter; the same for the pronoun "I".
_CAPITAL = rf"(?:[B-HJ-Z]|[AI](?![ \t]+(?!(?:{_AFTER_A_LETTER})\b)[a-z])(?!['’]))"
_NOT_ONE_OF_TWO = r"(?!\W*(?:and|or|[/,&])\W*[A-Za-z]\b)"
_STATED = re.compile(
    r"(?i:\b(?:answer|option|choice)\b(?:\s+(?:is|would be|should be))?)\s*[:=]?[\s*_\"'`(\[{]*"
    r"(?:(?i:option|choice)\s+[\s*_\"'`(\[{]*)?"
    rf"(?:({_CAPITAL})\b|(?<=[(\[])([a-z])(?=[)\]])){_NOT_ONE_OF_TWO}"
)
_WHOLE = re.compile(r"[\s*_\"'`(\[{]*([A-Za-z])[\s*_\"'`)\]}.:,]*")
_BEGINS = re.compile(
    rf"[\s*_\"'`]*(?:[(\[]([A-Za-z])[)\]]|([A-Za-z])[*_]*[).:](?=\s|\*|$)|({_CAPITAL})\b[*_]*(?=\s|,|$))"
    rf"{_NOT_ONE_OF_TWO}"
)
_ALONE = re.compile(rf"(?:[(\[]([A-Za-z])[)\]]|(?<![\w'’-])({_CAPITAL})(?![\w'’-]))")

# "not B", "it isn't (b)", "neither red nor", "cannot be option A"; and behind a letter "is wrong", "is not".
_DENIED_BEFORE = re.compile(
    r"\b(?:not|neither|nor|cannot|(?:is|are|was|ca|does|do)n['’ ]t)(?:\s+be)?(?:\s+(?:option|choice|the))?"
    r"[\s*_\"'`(\[{]*$",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"[\s*_\"'`)\]}]*\b(?:is\s+(?:not|wrong|incorrect)|isn['’]t|can(?:not|['’]t)\s+be)\b", re.IGNORECASE
)


def lettered(options: Sequence[str]) -> dict[str, str]:
    """The options by their letters, A first. Raises ValueError for more than 26."""
    if len(options) > len(LETTERS):
        raise ValueError(f"{len(options)} options, and there are {len(LETTERS)} letters")
    return dict(zip(LETTERS, options, strict=False))


def listed(options: Mapping[str, str]) -> str:
    """The options as lines, "A. a dog"."""
    return "\n".join(f"{letter}. {' '.join(text.split())}" for letter, text in options.items())


def read_choice(answer: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option that an answer gives; None where it gives none or does not say which of two.

    options: texts by letter. In order: a stated answer ("the answer is B", "Answer: (c)"; the last one counts), an
    answer that is one letter or begins with one ("b", "B. not A"), the text of an option, a single letter that stands
    alone, the only option whose text occurs. What stands before ``</think>`` does not count, nor does what is denied
    ("not B", "option B is wrong").
    """
    text = answer.rpartition("</think>")[2].strip()
    if stated := [letter for letter in map(_letter, _affirmed(_STATED, text)) if letter in options]:
        return stated[-1]
    for found in (_WHOLE.fullmatch(text), _BEGINS.match(text)):
        if found is not None and not _denied(found) and _letter(found) in options:
            return _letter(found)
    exact = [letter for letter, option in options.items() if _whole(option) == _whole(text)]
    same = exact or [letter for letter, option in options.items() if _plain(option) == _plain(text)]
    if same:  # "-3" and "3" differ in a sign alone
        return same[0] if len(same) == 1 else None
    alone = {letter for letter in map(_letter, _affirmed(_ALONE, text)) if letter in options}
    if alone:
        return alone.pop() if len(alone) == 1 else None
    return _mentioned(_plain(text), options)


def _letter(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None).upper()


def _affirmed(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    return (found for found in pattern.finditer(text) if not _denied(found))


def _denied(found: re.Match[str]) -> bool:
    """Whether a letter is one that the answer says is not the right one."""
    start, end = next(found.span(k) for k, group in enumerate(found.groups(), 1) if group is not None)
    before, behind = found.string[max(0, start - 40) : start], found.string[end : end + 40]
    return bool(_DENIED_BEFORE.search(before) or _DENIED_BEHIND.match(behind))


def _whole(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .")


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s]", " ", text.casefold()).split())


def _mentioned(text: str, options: Mapping[str, str]) -> str | None:
    """The only option whose words occur in a row and are not denied; "red" inside "dark red" does not, where both are
    options."""
    left, found = f" {text} ", []
    for letter, option in sorted(options.items(), key=lambda pair: -len(_plain(pair[1]))):
        words = f" {_plain(option)} "
        if words.strip() and words in left:
            if sum(_plain(other) == words.strip() for other in options.values()) > 1:
                return None  # which of them is meant nothing tells
            if not all(_DENIED_BEFORE.search(before) for before in left.split(words)[:-1]):
                found.append(letter)
            left = left.replace(words, " | ")
    return found[0] if len(found) == 1 else None
