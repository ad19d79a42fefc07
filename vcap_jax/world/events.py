"""Events of videos as lines, as benchmarks of events take descriptions apart: what moves where, and when.

An event is a line of a video caption with one thing in it: ``[0.0 - 2.0] A red circle moves left at the top left.``
"""

from __future__ import annotations

from typing import Literal

from vcap_jax.world.video_grammar import Segment, parse_video, shot_of
from vcap_jax.world.vocabulary import Claim

Relation = Literal["entailment", "neutral", "contradiction"]


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
