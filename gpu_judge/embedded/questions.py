"""Questions about a scene, answered from a caption alone: parsed with the world's grammar, nothing is looked at.

A reader without the picture: what the caption does not state, or states in two ways, it cannot answer. It makes no
errors of perception, for it perceives nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_judge.embedded.delimiters import find_blocks
from gpu_judge.embedded.request import BadRequest
from vcap_jax.world.asking import read_question
from vcap_jax.world.questions import told_by

UNKNOWN = "?"
_MOST_READING = 16 * 1024**2
"""Characters: a caption of 6,300 tokens, some 30,000 characters, for 500 questions."""
_ITEM = re.compile(r"(Q\d+): (.*?)((?: \([A-Z]\) .*)?)")
_OPTION = re.compile(r" \(([A-Z])\) (.*?)(?= \([A-Z]\) |$)")
_OPTION_LINE = re.compile(r"\n([A-Z])\) (.*)")
"""As some benchmarks list them; a question then ends with a blank line."""


def asks_questions(texts: Sequence[str]) -> bool:
    """Whether a request with these texts is about questions, and not for a verdict."""
    return any(find_blocks(text, ("questions",)) for text in texts)


def answer_questions(texts: Sequence[str]) -> dict[str, str | int]:
    """The answer to each question: the letter of its option, the words where there are no options, or ``UNKNOWN``.

    Raises BadRequest where questions or caption are missing, or stand there more than once.
    """
    text = "\n".join(texts)
    questions, captions = (
        [block.text for block in find_blocks(text, (name,))] for name in ("questions", "caption")
    )
    if len(questions) != 1 or len(captions) != 1:
        raise BadRequest(
            f"{len(questions)} lists of questions and {len(captions)} captions between delimiter lines such as "
            "<caption> and </caption>; exactly one of each must be there"
        )
    lines = [line for line in _OPTION_LINE.sub(r" (\1) \2", questions[0]).splitlines() if line]
    if len(lines) * len(captions[0]) > _MOST_READING:
        raise BadRequest(
            f"there are {len(lines):,} questions about {len(captions[0]):,} characters; the caption is read for each, "
            f"and at most {_MOST_READING:,} characters are read in one request"
        )
    answers: dict[str, str | int] = {}
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item is None:
            raise BadRequest(
                f"{line[:80]!r} is no question: write it as 'Q1: ...? (A) one option (B) another'"
            )
        name, question, options = item.groups()
        asked = read_question(question)
        told = None if asked is None else told_by(captions[0], asked)
        letters = {option: letter for letter, option in _OPTION.findall(options)}
        answers[name] = UNKNOWN if told is None else letters.get(told, UNKNOWN) if letters else told
    return answers
