"""Captions of videos: facts to English in timed segments, and back.

The one layout that is written and read:

    [0.0 - 2.0] A red circle moves left at the top left.
    [2.0 - 4.0] A blue square stays still at the bottom right.
    Summary: the scene changes at 2.0 seconds.

A segment's sentences are about the shot in which more than half of the segment lies. Where no shot holds that
much of it (a wrong timestamp), its claims are about no shot and therefore wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vcap_jax.world.scenes import MOTIONS, VIDEO_PLACES
from vcap_jax.world.sentences import (
    NOUN_PHRASE,
    Claim,
    Sentence,
    Slot,
    alternatives,
    capitalised,
    distinct,
    normalised,
    noun_claims,
    noun_phrase,
    read_sentences,
    split_sentences,
)

VIDEO_PROMPT = "Describe the video in timed segments and a summary."
"""What the tiny backbone is asked about a video."""

ATTRIBUTES = ("shape", "colour", "motion")
CUT: Slot = ("video", "cut")
"""The time of the cut in seconds with one decimal: the fact that no single segment shows."""
NO_SHOT = -1
"""Stands for the shot in the slots of claims whose timestamps fit no shot."""

# As in images, the place comes first in what is said, and may come last in what is understood.
_OBJECT_FORMS = ("at the {place} {thing} {moves}.", "the {place} shows {thing} {moving}.")
_STATIC_FORMS = ("at the {place} there is {thing}.", "the {place} shows {thing}.")
_UNDERSTOOD_FORMS = ("{thing} {moves} at the {place}.", "{thing} is at the {place}.")
_CUT_FORMS = ("the scene changes at {time} seconds.", "there is a cut at {time} seconds.")

_THING = NOUN_PHRASE.replace(r"(?:(?P<size>small|large) )?", "")
_MOVING = alternatives(motion for motion in MOTIONS if motion != "still")
_PARTS = {
    "thing": _THING,
    "place": rf"(?P<place>{alternatives(VIDEO_PLACES)})",
    "moves": rf"(?:moves (?P<motion>{_MOVING})|stays (?P<rest>still))",
    "moving": rf"(?:moving (?P<motion>{_MOVING})|staying (?P<rest>still))",
    "time": r"(?P<time>\d+\.\d)",
}
_OBJECT_PATTERNS = tuple(
    re.compile(form.replace(".", r"\.").format(**_PARTS))
    for form in (*_OBJECT_FORMS, *_STATIC_FORMS, *_UNDERSTOOD_FORMS)
)
_CUT_PATTERNS = tuple(re.compile(form.replace(".", r"\.").format(**_PARTS)) for form in _CUT_FORMS)
_HEADER = re.compile(
    r"^[ \t]*(?:\[\s*(?P<start>\d+(?:\.\d+)?)\s*-\s*(?P<end>\d+(?:\.\d+)?)\s*\]|(?P<summary>summary)\s*:)",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Segment:
    """A timed part of a caption, times in seconds; the slots of its claims are (place, attribute)."""

    start: float
    end: float
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class VideoCaption:
    """A caption as the grammar reads it. ``stray`` stands before the first segment and claims nothing."""

    segments: tuple[Segment, ...]
    summary: tuple[Sentence, ...]
    stray: tuple[Sentence, ...]

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        """All sentences of the caption."""
        return (*self.stray, *(s for segment in self.segments for s in segment.sentences), *self.summary)

    def claims(self, shots: Sequence[tuple[float, float]]) -> tuple[Claim, ...]:
        """Everything claimed, each claim once, given when the shots start and end (seconds)."""
        found: list[Claim] = []
        for segment in self.segments:
            shot = shot_of(segment.start, segment.end, shots)
            found += [((shot, *slot), value) for s in segment.sentences for slot, value in s.claims]
        found += [claim for sentence in self.summary for claim in sentence.claims]
        return distinct(found)


def shot_of(start: float, end: float, shots: Sequence[tuple[float, float]]) -> int:
    """Index of the shot that holds more than half of the time from ``start`` to ``end``, or ``NO_SHOT``."""
    for index, (first, last) in enumerate(shots):
        if min(end, last) - max(start, first) > (end - start) / 2 and end > start:
            return index
    return NO_SHOT


def _object_sentence(form: int, place: str, attributes: Mapping[str, str]) -> str:
    things = noun_phrase({key: value for key, value in attributes.items() if key != "motion"})
    if "motion" not in attributes:
        return _STATIC_FORMS[form].format(thing=things, place=place)
    motion = attributes["motion"]
    still = motion == "still"
    return _OBJECT_FORMS[form].format(
        thing=things,
        place=place,
        moves=f"{'stays' if still else 'moves'} {motion}",
        moving=f"{'staying' if still else 'moving'} {motion}",
    )


def describe_video(
    facts: Mapping[Slot, str], rng: np.random.Generator, *, segments: Sequence[tuple[float, float]]
) -> str:
    """Says ``facts`` (true or not) in the canonical layout.

    Args:
        facts: (shot, place, "shape" | "colour" | "motion") and ("video", "cut") -> value; any subset.
        rng: chooses among the forms; one form is kept for a whole caption, objects come in reading order.
        segments: start and end in seconds written before the facts of shot 0, 1, ...

    Returns:
        The caption; a shot without facts has no segment. Empty if there are no facts.
    """
    form = int(rng.integers(len(_OBJECT_FORMS)))
    cut_form = _CUT_FORMS[int(rng.integers(len(_CUT_FORMS)))]
    lines = []
    for shot, (start, end) in enumerate(segments):
        sentences = []
        for place in VIDEO_PLACES:
            attributes = {key: facts[shot, place, key] for key in ATTRIBUTES if (shot, place, key) in facts}
            if attributes:
                sentences.append(capitalised(_object_sentence(form, place, attributes)))
        if sentences:
            lines.append(f"[{start:.1f} - {end:.1f}] {' '.join(sentences)}")
    if CUT in facts:
        lines.append(f"Summary: {cut_form.format(time=facts[CUT])}")
    return "\n".join(lines)


def _read_object(sentence: str) -> tuple[Claim, ...]:
    plain = normalised(sentence)
    for pattern in _OBJECT_PATTERNS:
        if match := pattern.fullmatch(plain):
            place = match["place"]
            claims = noun_claims(place, match, ("shape", "colour"))
            found = match.groupdict()
            if motion := found.get("motion") or found.get("rest"):
                claims.append(((place, "motion"), motion))
            return tuple(claims)
    return ()


def _read_summary(sentence: str) -> tuple[Claim, ...]:
    plain = normalised(sentence)
    for pattern in _CUT_PATTERNS:
        if match := pattern.fullmatch(plain):
            return ((CUT, match["time"]),)
    return ()


def parse_segment(text: str) -> tuple[Sentence, ...]:
    """Reads the text of one segment, with or without its ``[start - end]`` header."""
    return read_sentences(_HEADER.sub("", text), _read_object)


def parse_video(text: str) -> VideoCaption:
    """Reads any text as a caption; what does not fit the layout or the grammar claims nothing."""
    headers = list(_HEADER.finditer(text))
    stray = text[: headers[0].start()] if headers else text
    segments: list[Segment] = []
    summary: list[Sentence] = []
    ends = [*(header.start() for header in headers[1:]), len(text)] if headers else []
    for header, end in zip(headers, ends, strict=True):
        body = text[header.end() : end]
        if header["summary"]:
            summary += read_sentences(body, _read_summary)
        else:
            sentences = read_sentences(body, _read_object)
            segments.append(Segment(float(header["start"]), float(header["end"]), sentences))
    return VideoCaption(
        segments=tuple(segments),
        summary=tuple(summary),
        stray=tuple(Sentence(piece, ()) for piece in split_sentences(stray)),
    )
