"""Multiple choice: which option an answer in words gives.

Nothing is guessed. An answer that names no option, or two of them, gives None, and whoever asked decides what that
means: another model that matches answers to options, or a wrong answer. Two readers of public harnesses, measured on
the same answers: one takes "The answer is B because A dog" for A and nothing for "(b)", another "blue" for B.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase

LETTERS = ascii_uppercase
READING = 3
"""Version of ``read_choice``: raised when it reads answers otherwise. 1 took the last option that was spoken of, 2 a
stated one though another was given after it."""

_AFTER_A_LETTER = (
    r"because|since|as|for|and|or|but|not|which|that|is|was|would|seems|due|given|based|here|in|from|the"
    r"|rather than|instead of|unlike|has|does|can|could|fits|matches|says|shows|describes|mentions"
)
# "A dog" has an article, "A because" a letter; the same for the pronoun "I".
_CAPITAL = rf"(?:[B-HJ-Z]|[AI](?![ \t]+(?!(?:{_AFTER_A_LETTER})\b)[a-z])(?!['’]))"
_NOT_ONE_OF_TWO = r"(?!\W*(?:\b(?:and|or)\b|[/,&])\W*[A-Zb-hj-z]\b)"
_OPENING, _CLOSING = r"[\s*_\"'`(\[{]*", r"[\s*_\"'`)\]}]*"
# A small letter is one where it stands in brackets, or ends the clause: "the answer is a mystery" gives none.
_LETTER = (
    rf"(?:({_CAPITAL})\b|(?<=[(\[{{])([a-z])(?=[)\]}}])|\b([a-z])(?={_CLOSING}(?:[.,;!]|\n|$)))"
    rf"{_NOT_ONE_OF_TWO}"
)
_OPTION = r"(?i:option|choice)"
_IS = r"\s*(?i:\b(?:is|would be|should be)\b)?\s*[:=]?"
# "the answer is B", "Answer: (c)", "the correct option is D", "\boxed{B}", "<answer>B</answer>".
_STATED = re.compile(
    rf"(?:\b(?:(?i:answer)|(?i:correct|right|best)\s+{_OPTION})\b{_IS}|\\boxed\{{(?:\\text)?|<(?i:answer)>)"
    rf"{_OPENING}(?:{_OPTION}\s+{_OPENING})?{_LETTER}"
)
# Behind a stated answer: "Wait, B", "No, it is (c)", "B is correct".
_AFTERTHOUGHT = re.compile(
    rf"\b(?i:wait|actually|no|sorry|correction|instead|(?:it|that)(?:['’]s|\s(?:is|must be|should be)))\b\W{{1,6}}"
    rf"(?:{_OPTION}\W{{1,4}})?{_LETTER}"
    rf"|{_LETTER}\W{{1,4}}(?i:is|must be|would be)\s(?i:the\s)?(?i:correct|right|best|better|answer)\b"
)
_NAMED = re.compile(rf"\b{_OPTION}\b{_IS}{_OPENING}{_LETTER}")
_WHOLE = re.compile(rf"{_OPENING}([A-Za-z])[\s*_\"'`)\]}}.:,]*")
_BEGINS = re.compile(
    rf"[\s*_\"'`]*(?:[(\[]([A-Za-z])[)\]]|([A-Za-z])[*_]*[).:](?=\s|\*|$)|({_CAPITAL})\b[*_]*(?=\s|,|$))"
    rf"{_NOT_ONE_OF_TWO}"
)
_ENDS = re.compile(rf"[.!?:\n]{_OPENING}([A-Z])[\s*_\"'`)\]}}.]*$")
_ALONE = re.compile(rf"(?:[(\[]([A-Za-z])[)\]]|(?<![\w'’-])({_CAPITAL})(?![\w'’-]))")

# "not B", "it isn't (b)", "neither red nor", "rather than option A"; and behind a letter "is wrong", "is not".
_DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|neither|nor|cannot|(?:is|are|was|ca|does|do)n['’ ]t)(?:\s+be)?"
    r"|\b(?:rather than|instead of|unlike|rul(?:e|ed|es|ing) out|eliminat(?:e|ed|es|ing)|exclud(?:e|ed|es|ing)))"
    r"(?:\s+(?:option|choice|the))?[\s*_\"'`(\[{]*$",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"[\s*_\"'`)\]}]*(?:\b(?:is\s+(?:not|wrong|incorrect|false)|isn['’]t|can(?:not|['’]t)\s+be)\b"
    r"|:\s*(?:no|wrong|incorrect|false)\b)",
    re.IGNORECASE,
)
# Words that are an option's text elsewhere: "there is no hint", "the one on the left".
_NO_OPTION = re.compile(
    r"(?<=\w\W)\bno\b(?=\s+\w)|\b(?:the|this|that|each|every|any|no|which)\s+one\b", re.IGNORECASE
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

    options: texts by letter. In order: a stated answer ("the answer is B", "Answer: (c)"; the last one counts, unless
    another option is given after it: "Wait, B is correct"), an answer that is one letter, or begins or ends with one
    ("b", "B. not A"), the only option that is named ("option B"), the text of an option, a single letter that stands
    alone, the only option whose text occurs. What stands before ``</think>`` does not count, nor does what is denied
    ("not B", "option B is wrong").
    """
    text = answer.rpartition("</think>")[2].strip()
    if stated := _of_options(_STATED, text, options):
        letter, behind = _letter(stated[-1]), text[stated[-1].end() :]
        return letter if {letter}.issuperset(_letters(_AFTERTHOUGHT, behind, options)) else None
    at_an_end = {
        _letter(found)
        for found in (_WHOLE.fullmatch(text), _BEGINS.match(text), _ENDS.search(text))
        if found is not None and not _denied(found) and _letter(found) in options
    }
    exact = [letter for letter, option in options.items() if _whole(option) == _whole(text)]
    same = exact or [letter for letter, option in options.items() if _plain(option) == _plain(text)]
    for found in (at_an_end, set(_letters(_NAMED, text, options)), same):
        if found:
            return next(iter(found)) if len(found) == 1 else None
    if alone := set(_letters(_ALONE, _without_names(text, options), options)):
        return alone.pop() if len(alone) == 1 else None
    return _mentioned(_plain(_NO_OPTION.sub(" ", text)), options)


def _letter(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None).upper()


def _of_options(pattern: re.Pattern[str], text: str, options: Mapping[str, str]) -> list[re.Match[str]]:
    """Where options are, as they follow one another, but for what is denied."""
    return [one for one in pattern.finditer(text) if not _denied(one) and _letter(one) in options]


def _letters(pattern: re.Pattern[str], text: str, options: Mapping[str, str]) -> list[str]:
    """Their letters."""
    return [_letter(one) for one in _of_options(pattern, text, options)]


def _denied(found: re.Match[str]) -> bool:
    """Whether a letter is one that the answer says is not the right one."""
    start, end = next(found.span(k) for k, group in enumerate(found.groups(), 1) if group is not None)
    before, behind = found.string[max(0, start - 40) : start], found.string[end : end + 40]
    return bool(_DENIED_BEFORE.search(before) or _DENIED_BEHIND.match(behind))


def _whole(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .")


# Of a number or a name: "2.5", "10:30", "1/2", "-5", "30%", "C++".
_SIGNS = re.compile(r"(?<=\d)[.,:/-](?=\d)|(?<!\w)-(?=\d)|(?<=\d)%|(?<=[a-z])[+#]+|(?<=\+)\+")


def _plain(text: str) -> str:
    """In words, without punctuation but for what belongs to a number or a name."""
    text = text.casefold().replace("−", "-")
    kept = {place for found in _SIGNS.finditer(text) for place in range(*found.span())}
    return " ".join(
        "".join(c if place in kept or re.match(r"[\w\s]", c) else " " for place, c in enumerate(text)).split()
    )


def _without_names(text: str, options: Mapping[str, str]) -> str:
    """Without the options' own texts in which a letter stands alone ("Vitamin C")."""
    for option in options.values():
        if _ALONE.search(option) and len(option.strip()) > 1:
            words = r"\s+".join(map(re.escape, option.split()))
            text = re.sub(rf"(?<!\w){words}(?!\w)", " ", text, flags=re.IGNORECASE)
    return text


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
