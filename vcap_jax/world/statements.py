"""What benchmarks take captions apart into, and what they ask about videos.

Single claims about an image as sentences, questions to be answered with yes or no, and events of videos as lines. An
event is a line of a video caption with one thing in it: ``[0.0 - 2.0] A red circle moves left at the top left.``
"""

from __future__ import annotations

import re
from typing import Literal

from vcap_jax.world.image_grammar import parse_image, say_image
from vcap_jax.world.sentences import PLAIN, capitalised
from vcap_jax.world.video_grammar import Segment, parse_video, shot_of
from vcap_jax.world.vocabulary import Claim, Slot

Relation = Literal["entailment", "neutral", "contradiction"]
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


def events_of(caption: str) -> list[str]:
    """The events that a caption tells, one for each sentence about a thing, in its order."""
    return [
        f"[{segment.start:.1f} - {segment.end:.1f}] {sentence.text}"
        for segment in parse_video(caption).segments
        for sentence in segment.sentences
        if sentence.claims
    ]


def relation(description: str, event: str) -> Relation:
    """How a description stands to an event: it tells all of it at that time, or something else of the same thing
    ("contradiction"), or neither. A text that is no event is neutral."""
    segments = parse_video(event).segments
    told = _at(parse_video(description).segments, segments[0]) if len(segments) == 1 else None
    if told is None:
        return "neutral"
    claims = {claim for sentence in segments[0].sentences for claim in sentence.claims}
    if claims and claims <= told:
        return "entailment"
    values: dict[object, set[str]] = {}
    for slot, value in told:
        values.setdefault(slot, set()).add(value)
    against = any(slot in values and value not in values[slot] for slot, value in claims)
    return "contradiction" if against else "neutral"


def _at(segments: tuple[Segment, ...], event: Segment) -> set[Claim] | None:
    """The claims of a description's segments that lie, by more than half, in the time of an event; None for none."""
    there = [
        segment
        for segment in segments
        if shot_of(segment.start, segment.end, [(event.start, event.end)]) == 0
    ]
    if not there:
        return None
    return {claim for segment in there for sentence in segment.sentences for claim in sentence.claims}
