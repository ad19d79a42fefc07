"""Questions about a scene, answered from a caption alone: parsed with the world's grammar, nothing is looked at.

A reader without the picture: what the caption does not state, or states in two ways, it cannot answer. It makes no
errors of perception, for it perceives nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpu_judge.embedded.request import BadRequest
from vcap_jax.world.questions import read_question, told_by

UNKNOWN = "?"
_QUESTIONS = re.compile(r"^<questions>\n(.*?)\n</questions>$", re.MULTILINE | re.DOTALL)
_CAPTION = re.compile(r"^<caption>\n(.*?)\n?^</caption>$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"(Q\d+): (.*?)((?: \([A-Z]\) .*)?)")
_OPTION = re.compile(r" \(([A-Z])\) (.*?)(?= \([A-Z]\) |$)")


def asks_questions(body: Mapping[str, Any]) -> bool:
    """Whether a request is about questions, and not for a verdict."""
    return any(_QUESTIONS.search(text) for text in _texts(body))


def answer_questions(body: Mapping[str, Any]) -> dict[str, str | int]:
    """The answer to each question: the letter of its option, the words where there are no options, or ``UNKNOWN``.

    Raises BadRequest where questions or caption are missing, or stand there more than once.
    """
    text = "\n".join(_texts(body))
    questions, captions = _QUESTIONS.findall(text), _CAPTION.findall(text)
    if len(questions) != 1 or len(captions) != 1:
        raise BadRequest(
            f"{len(questions)} lists of questions and {len(captions)} captions between delimiter lines such as "
            "<caption> and </caption>; exactly one of each must be there"
        )
    answers: dict[str, str | int] = {}
    for line in questions[0].splitlines():
        item = _ITEM.fullmatch(line)
        if item is None:
            raise BadRequest(f"{line!r} is no question: write it as 'Q1: ...? (A) one option (B) another'")
        name, question, options = item.groups()
        asked = read_question(question)
        told = None if asked is None else told_by(captions[0], asked)
        letters = {option: letter for letter, option in _OPTION.findall(options)}
        answers[name] = UNKNOWN if told is None else letters.get(told, UNKNOWN) if letters else told
    return answers


def _texts(body: Mapping[str, Any]) -> list[str]:
    """The texts of all user messages; what is no text is passed over."""
    messages = body.get("messages")
    texts: list[str] = []
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, Mapping) or message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            texts += [
                part["text"]
                for part in content
                if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            ]
    return texts
