"""Single claims about an image as sentences, and questions to be answered with yes or no: what captions are taken
apart into, and what is asked about videos."""

from __future__ import annotations

import re

from vcap_jax.world.image_grammar import parse_image, say_image
from vcap_jax.world.sentences import PLAIN, capitalised
from vcap_jax.world.vocabulary import Claim, Slot

_YES_NO = re.compile(r"(?P<question>[^?]+\?) Is it (?P<value>[\w. ]+)\?")


def statement(slot: Slot, value: str) -> str:
    """A claim about an image as a sentence of its captions, in plain words. Raises ValueError for a video's slot."""
    (sentence,) = say_image({slot: value}, PLAIN)
    return capitalised(sentence)


def read_statement(text: str) -> Claim | None:
    """The claim that :func:`statement` put into words; None for a text that does not claim exactly one thing."""
    claims = parse_image(text).claims
    return claims[0] if len(claims) == 1 else None


def yes_no(question: str, value: str) -> str:
    """Asks whether ``value`` is the answer to a question."""
    return f"{question} Is it {value}?"


def read_yes_no(text: str) -> tuple[str, str] | None:
    """Question and value of :func:`yes_no`; None for another text."""
    match = _YES_NO.fullmatch(text)
    return None if match is None else (match["question"], match["value"])
