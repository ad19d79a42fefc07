"""Questions about samples, their file, and whether an answer is right.

One JSON object per line, several lines for a sample with several questions, in the order in which they are asked:

    {"id": "a", "question": "What colour is the car?", "options": ["red", "blue", "white"], "answer": "red"}
    {"id": "a", "question": "How many people are there?", "answer": "3"}

Without options the answer is compared as text: in lower case, without articles, and without punctuation that makes no
other number or name (-3, <5, C++ keep theirs).
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vcap_jax.data.errors import ManifestError
from vcap_jax.data.jsonl import other_keys, read_objects, row_id, string_list, without_nulls
from vcap_jax.system.json_values import JsonObject

UNKNOWN = "?"
"""The answer that a caption does not tell."""
_KEYS = {
    "id": ("uid", "key", "name", "image_id", "video_id", "sample_id"),
    "question": ("text", "query", "prompt"),
    "options": ("choices", "candidates"),
    "answer": ("label", "gold", "solution"),
}
"""The keys of a line, each with what other projects call it."""
_LETTERS = string.ascii_uppercase
_LETTER = re.compile(r"\(?([A-Za-z])\)?([.):]?)(?:\s+(.*))?", re.DOTALL)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b(?![+#])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_SIGNS = re.compile(
    r"((?<!\w)(?:-(?=\.?\d)|[<>\u2264\u2265]=?(?=\s?\.?\d))|(?<=[^\W\d_])[+#]+(?!\w))|[^\w\s.]|\.(?!\d)"
)
"""The group: those that make another number or name, and count (-3, <5, C++)."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question; ``answer`` is one of the options where there are any.

    Raises ValueError for an empty text, repeated or too many options, and an answer that is none of them.
    """

    text: str
    answer: str
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.text.strip() and self.answer.strip()):
            raise ValueError(
                f"a question and its answer must have text, not {self.text!r} and {self.answer!r}"
            )
        if len(set(self.options)) < len(self.options) or not len(self.options) <= len(_LETTERS):
            raise ValueError(f"{self.text!r}: give at most {len(_LETTERS)} different options")
        if self.options and (self.answer not in self.options or len(self.options) < 2):
            raise ValueError(f"{self.text!r}: the answer {self.answer!r} must be one of two or more options")

    @property
    def letters(self) -> str:
        """One for each option."""
        return _LETTERS[: len(self.options)]

    def right(self, answer: str) -> bool:
        """Whether an answer, as :meth:`accepted` gives it, is the true one."""
        if answer == UNKNOWN:
            return False
        if self.options:
            return self.options[self.letters.index(answer)] == self.answer
        return _plain(answer) == _plain(self.answer)

    def accepted(self, answer: str) -> str | None:
        """A model's answer in its shortest form, a letter where there are options; None for none of them."""
        answer = answer.strip()
        if answer == UNKNOWN or not self.options:
            return answer or UNKNOWN
        if answer in [*self.letters]:  # what is asked for, whichever option has it as its text
            return answer
        for letter, option in zip(self.letters, self.options, strict=True):
            if answer.casefold() == option.casefold():
                return letter
        found = _LETTER.fullmatch(answer)
        if found is None or found[1].upper() not in self.letters:
            return None
        letter = found[1].upper()
        marked, rest = ")" in answer[:3] or bool(found[2]), found[3]
        # "A red car" may be option A and may begin with an article: nothing tells which is meant.
        own = self.options[self.letters.index(letter)].casefold()
        return letter if marked or rest is None or rest.strip(" .").casefold() == own else None


def _plain(text: str) -> str:
    """Without articles, and signs that do not count, unless nothing else is left ("A" on a sign, "+")."""
    text = _THOUSANDS.sub("", text.casefold().replace("\u2212", "-"))
    words = " ".join(_SIGNS.sub(r"\1 ", text).split())
    return " ".join(_ARTICLES.sub(" ", words).split()) or words or " ".join(text.split())


def question_lines(questions: Mapping[str, Sequence[Question]]) -> str:
    """The content of a file of questions by sample."""
    rows: list[JsonObject] = []
    for identity, asked in questions.items():
        for one in asked:
            options = {"options": list(one.options)} if one.options else {}
            rows.append({"id": identity, "question": one.text, **options, "answer": one.answer})
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _text(row: JsonObject, key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise ManifestError(f'{where}: "{key}" must be a text, got {value!r}')
    return value


def read_questions(path: str | Path) -> dict[str, tuple[Question, ...]]:
    """Questions by sample. Raises ManifestError for a missing or empty file and for a bad line, by its number."""
    found: dict[str, list[Question]] = {}
    for number, found_row in read_objects(Path(path), "file of questions"):
        row, where = without_nulls(found_row), f"{path}:{number}"
        other_keys(row, where, _KEYS)
        identity = row_id(row, where)
        text, answer = _text(row, "question", where), _text(row, "answer", where)
        options = string_list(row.get("options", []), where, "options")
        try:
            asked = Question(text=text, answer=answer, options=options)
        except ValueError as error:
            raise ManifestError(f"{where}: {error}") from error
        found.setdefault(identity, []).append(asked)
    if not found:
        raise ManifestError(f"the file of questions {path} is empty: write one JSON object per line")
    return {identity: tuple(asked) for identity, asked in found.items()}
