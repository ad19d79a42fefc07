"""Single claims about an image as sentences, and questions to be answered with yes or no: what captions are taken
apart into, and what is asked about videos."""

from __future__ import annotations

import re

from vcap_jax.world import grammar
from vcap_jax.world.scenes import IMAGE_PLACES
from vcap_jax.world.sentences import Claim, Slot, alternatives

_OBJECT = "The {attribute} of the object at the {place} is {value}."
_BACKGROUND = "The colour of the background is {value}."
_READ_OBJECT = re.compile(
    rf"The (?P<attribute>{alternatives(grammar.ATTRIBUTES)}) of the object at the "
    rf"(?P<place>{alternatives(IMAGE_PLACES)}) is (?P<value>\w+)\."
)
_READ_BACKGROUND = re.compile(r"The colour of the background is (?P<value>\w+)\.")
_YES_NO = re.compile(r"(?P<question>.+\?) Is it (?P<value>[\w.]+)\?")


def statement(slot: Slot, value: str) -> str:
    """A claim about an image in words."""
    if slot == grammar.BACKGROUND:
        return _BACKGROUND.format(value=value)
    place, attribute = slot
    return _OBJECT.format(attribute=attribute, place=place, value=value)


def read_statement(text: str) -> Claim | None:
    """The claim that :func:`statement` put into words; None for another text."""
    if (match := _READ_BACKGROUND.fullmatch(text)) is not None:
        return grammar.BACKGROUND, match["value"]
    if (match := _READ_OBJECT.fullmatch(text)) is not None:
        return (match["place"], match["attribute"]), match["value"]
    return None


def yes_no(question: str, value: str) -> str:
    """Asks whether ``value`` is the answer to a question."""
    return f"{question} Is it {value}?"


def read_yes_no(text: str) -> tuple[str, str] | None:
    """Question and value of :func:`yes_no`; None for another text."""
    match = _YES_NO.fullmatch(text)
    return None if match is None else (match["question"], match["value"])
