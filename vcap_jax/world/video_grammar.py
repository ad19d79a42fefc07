"""Captions of videos: facts to English in timed segments, and back.

The one layout that is written and read:

    [0.0 - 2.0] At the top left a large red circle moves left. The one at the top left turns green at 1.0 seconds.
    The camera pans left. The background is navy.
    [2.0 - 6.0] At the bottom right a small blue square stays still. The background is white.
    Summary: there are two shots. The scene changes at 2.0 seconds.

(a segment is one line). A segment's sentences are about the shot in which more than half of the segment lies. Where no
shot holds that much of it (a wrong time), its claims are about no shot and therefore wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vcap_jax.world import vocabulary as words
from vcap_jax.world.asking import take_answers
from vcap_jax.world.image_grammar import (
    BACKGROUND_WORDS,
    OBJECT_FORMS,
    READS_BACKGROUND,
    UNDERSTOOD_OBJECT_FORMS,
    say_background,
)
from vcap_jax.world.sentences import (
    NUMBER,
    REFERENCES,
    Reader,
    Sentence,
    Wording,
    alternatives,
    capitalised,
    distinct,
    draw_wording,
    forms_of,
    number_of,
    read_sentences,
    reference_pattern,
    say_thing,
    split_sentences,
    thing_claims,
)
from vcap_jax.world.slots import video_slots
from vcap_jax.world.vocabulary import Claim, Slot

VIDEO_PROMPT = "Describe the video in timed segments and a summary."
"""What the tiny policy is asked about a video."""
NO_SHOT = -1
"""Stands for the shot in the slots of claims whose times fit no shot."""

# As in images, the place comes first in what is written, and may come last in what is understood.
_MOVING_FORMS = (
    "at the {place} {thing} {moves}.",
    "the {place} shows {thing} {moving}.",
    "at the {place} there is {thing} {moving}.",
)
_EVENTS = {"appears": ("appears", "comes in"), "disappears": ("disappears", "vanishes")}
_RECOLOURING = ("changes colour", "changes its colour")
_TURNS = ("turns {into}", "becomes {into}")
_WHEN = " at {time} seconds"
_SOMETHING_FORMS = ("something happens to {one}{when}.",)
_INTO_FORMS = ("{one} is {into} in the end.", "{one} ends up {into}.")
_FIRST_FORMS = ("{one} acts first.", "the first event is at the {place}.")
_CAMERA_FORMS = ("the camera {does}.", "the view {does}.")
_STANDS = ("stays still", "is still")
_SHOTS_FORMS = ("there are {number} shots.", "the video has {number} shots.")
_CUT_FORMS = (
    ("the scene changes at {time} seconds.", "the scene changes again at {time} seconds."),
    ("there is a cut at {time} seconds.", "there is another cut at {time} seconds."),
)
"""Each a sentence for the first cut and one for the second."""
_BACKGROUND_FIRST = 0.25

_EVENT_OF = {word: event for event, wordings in _EVENTS.items() for word in wordings}
_HEADER = re.compile(
    r"^[ \t]*(?:\[\s*(?P<start>\d+(?:\.\d+)?)\s*-\s*(?P<end>\d+(?:\.\d+)?)\s*\]|(?P<summary>summary)\s*:)",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Segment:
    """A timed part of a caption, times in seconds; the slots of its claims lack the shot."""

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
        """Everything claimed, each claim once, given when the shots start and end (seconds). Those of times that fit no
        shot are about one and the same: said twice, even of different times, they are one claim."""
        found: list[Claim] = []
        for segment in self.segments:
            shot = shot_of(segment.start, segment.end, shots)
            found += [((shot, *slot), value) for s in segment.sentences for slot, value in s.claims]
        found += [claim for sentence in self.summary for claim in sentence.claims]
        return distinct(found)

    def empty(self, shots: Sequence[tuple[float, float]]) -> tuple[Slot, ...]:
        """Whose slots (see ``object_of``) it says cannot be filled, as nothing is there."""
        return tuple(
            (shot_of(segment.start, segment.end, shots), sentence.empty)
            for segment in self.segments
            for sentence in segment.sentences
            if sentence.empty
        )


def shot_of(start: float, end: float, shots: Sequence[tuple[float, float]]) -> int:
    """Index of the shot that holds more than half of the time from ``start`` to ``end``, or ``NO_SHOT``."""
    for index, (first, last) in enumerate(shots):
        if min(end, last) - max(start, first) > (end - start) / 2 and end > start:
            return index
    return NO_SHOT


def describe_video(
    facts: Mapping[Slot, str], rng: np.random.Generator, *, segments: Sequence[tuple[float, float]]
) -> str:
    """A caption that claims exactly ``facts``, true or not, in the canonical layout; empty if there are none.

    facts: any subset of a video's slots (see ``vocabulary``). rng: chooses the wording, which is kept for the whole
    caption, and whether backgrounds come first. segments: start and end in seconds written before the facts of shot 0,
    1, ...; a shot without facts has none. Raises ValueError for a slot that a video does not have, or one of a shot
    without a segment.
    """
    wording = draw_wording(rng)
    background_first = rng.random() < _BACKGROUND_FIRST
    lines = []
    left = dict(facts)
    for shot, (start, end) in enumerate(segments):
        inside = {slot[1:]: left.pop(slot) for slot in list(left) if slot[0] == shot}
        if inside:
            sentences = map(capitalised, say_shot(inside, wording, background_first))
            lines.append(f"[{start:.1f} - {end:.1f}] {' '.join(sentences)}")
    about_all = {slot: left.pop(slot) for slot in (words.SHOTS, *words.CUTS) if slot in left}
    if about_all:
        summary = say_summary(about_all, wording)
        lines.append(" ".join([f"Summary: {summary[0]}", *map(capitalised, summary[1:])]))
    if left:
        raise ValueError(
            f"{next(iter(left))!r} is no slot of a video with {len(segments)} segments: see vocabulary.py for slots"
        )
    return "\n".join(lines)


def say_summary(facts: Mapping[Slot, str], wording: Wording) -> list[str]:
    """Sentences, without capitals, about the whole video: of its shots and cuts, what ``facts`` have."""
    cut_forms = _CUT_FORMS[wording.of("cut", ("changes", "cut")) == "cut"]
    sentences = []
    if words.SHOTS in facts:
        sentences.append(wording.of("shots", _SHOTS_FORMS).format(number=facts[words.SHOTS]))
    for cut, told in zip(words.CUTS, cut_forms, strict=True):
        if cut in facts:
            sentences.append(told.format(time=facts[cut]))
    return sentences


def say_shot(facts: Mapping[Slot, str], wording: Wording, background_first: bool = False) -> list[str]:
    """Sentences, without capitals, about one shot, whose slots lack the shot. Raises ValueError for another slot."""
    left = dict(facts)
    sentences = []
    for place in words.VIDEO_PLACES:
        attributes = {key: left.pop((place, key)) for key in words.VIDEO_ATTRIBUTES if (place, key) in left}
        motion = left.pop((place, "motion"), None)
        if attributes or motion:
            sentences.append(_say_object(place, attributes, motion, wording))
        told = {key: left.pop((place, key)) for key in ("event", "time", "into") if (place, key) in left}
        sentences += _say_event(wording.of("one", REFERENCES).format(place=place), told, wording)
    if words.FIRST in left:
        place = left.pop(words.FIRST)
        one = wording.of("one", REFERENCES).format(place=place)
        sentences.append(wording.of("first", _FIRST_FORMS).format(one=one, place=place))
    if words.CAMERA in left:
        camera = left.pop(words.CAMERA)
        does = _STANDS[0] if camera == "still" else camera
        sentences.append(wording.of("camera", _CAMERA_FORMS).format(does=does))
    if words.BACKGROUND in left:
        said = say_background(left.pop(words.BACKGROUND), wording)
        sentences.insert(0 if background_first else len(sentences), said)
    if left:
        raise ValueError(f"{next(iter(left))!r} is no slot of a shot: see vocabulary.py for those that are")
    return sentences


def _say_object(place: str, attributes: Mapping[str, str], motion: str | None, wording: Wording) -> str:
    thing = say_thing(attributes, wording)
    if motion is None:
        return wording.of("object", OBJECT_FORMS).format(place=place, thing=thing)
    still = motion == "still"
    return wording.of("object", _MOVING_FORMS).format(
        place=place,
        thing=thing,
        moves=f"{'stays' if still else 'moves'} {motion}",
        moving=f"{'staying' if still else 'moving'} {motion}",
    )


def _say_event(one: str, told: Mapping[str, str], wording: Wording) -> list[str]:
    """What happens to one object. A colour that does not go with the event, or has none, is a sentence of its own."""
    when = _WHEN.format(time=told["time"]) if "time" in told else ""
    event, into = told.get("event"), told.get("into")
    sentences = []
    if event == "changes" and into is not None:
        return [f"{one} {wording.of('event', _TURNS).format(into=into)}{when}."]
    if event is not None:
        does = wording.of("event", _RECOLOURING if event == "changes" else _EVENTS[event])
        sentences.append(f"{one} {does}{when}.")
    elif when:
        sentences.append(wording.of("event", _SOMETHING_FORMS).format(one=one, when=when))
    if into is not None:
        sentences.append(wording.of("event", _INTO_FORMS).format(one=one, into=into))
    return sentences


def parse_segment(text: str) -> tuple[Sentence, ...]:
    """Reads the text of one segment, with or without its ``[start - end]`` header."""
    return read_sentences(_HEADER.sub("", text), _SHOT_FORMS)


def parse_video(text: str) -> VideoCaption:
    """Reads any text as a caption; what does not fit the layout or the grammar claims nothing. A question with its
    answer is a segment of its own if it names times, and belongs to the summary if it is about the whole."""
    text, answers = take_answers(text, timed=True)
    headers = list(_HEADER.finditer(text))
    stray = text[: headers[0].start()] if headers else text
    segments: list[Segment] = []
    summary: list[Sentence] = []
    ends = [*(header.start() for header in headers[1:]), len(text)] if headers else []
    for header, end in zip(headers, ends, strict=True):
        body = text[header.end() : end]
        if header["summary"]:
            summary += read_sentences(body, _SUMMARY_FORMS)
        else:
            sentences = read_sentences(body, _SHOT_FORMS)
            segments.append(Segment(float(header["start"]), float(header["end"]), sentences))
    for one in answers:
        if one.asked.span is not None:
            segments.append(Segment(*one.asked.span, one.sentences(_SHOT_FORMS, _SHOT_SLOTS)))
        else:  # without times nothing is claimed of a shot
            summary += one.sentences((), (words.SHOTS, *words.CUTS))
    return VideoCaption(
        segments=tuple(segments),
        summary=tuple(summary),
        stray=tuple(Sentence(piece, ()) for piece in split_sentences(stray)),
    )


def _object_claims(match: re.Match[str]) -> list[Claim] | None:
    claims, found = thing_claims(match, words.VIDEO_ATTRIBUTES), match.groupdict()
    if claims is not None and (motion := found.get("motion") or found.get("rest")):
        claims.append(((match["place"], "motion"), motion))
    return claims


def _event_claims(match: re.Match[str]) -> list[Claim]:
    """Of any sentence about what happens to one object."""
    place, found = match["one"], match.groupdict()
    claims: list[Claim] = []
    if does := found.get("does"):
        claims.append(((place, "event"), _EVENT_OF.get(does, "changes")))
    if found.get("turned"):
        claims += [((place, "event"), "changes"), ((place, "into"), match["turned"])]
    if into := found.get("into"):
        claims.append(((place, "into"), into))
    if time := found.get("time"):
        claims.append(((place, "time"), time))
    return claims


_TIME = r"(?P<time>\d+\.\d)"
_MOVING = alternatives(motion for motion in words.MOTIONS if motion != "still")
_PARTS = {
    "place": rf"(?P<place>{alternatives(words.VIDEO_PLACES)})",
    "thing": r"(?P<thing>an? [a-z0-9 ]+)",
    "moves": rf"(?:moves (?P<motion>{_MOVING})|stays (?P<rest>still))",
    "moving": rf"(?:moving (?P<motion>{_MOVING})|staying (?P<rest>still))",
    "one": reference_pattern("one", words.VIDEO_PLACES),
    "happens": rf"(?:(?P<does>{alternatives((*_EVENT_OF, *_RECOLOURING))})"
    rf"|(?:turns|becomes) (?P<turned>{alternatives(words.COLOURS)}))",
    "into": rf"(?P<into>{alternatives(words.COLOURS)})",
    "when": f" at {_TIME} seconds",
    "time": _TIME,
    "number": rf"(?P<number>{NUMBER})",
    "does": rf"(?P<does>{alternatives((*words.CAMERAS[1:], *_STANDS))})",
    "colour": rf"(?P<background>{BACKGROUND_WORDS})",
}
_ABOUT_SHOTS: tuple[Reader, ...] = (
    (
        (*_MOVING_FORMS, *OBJECT_FORMS, "{thing} {moves} at the {place}.", *UNDERSTOOD_OBJECT_FORMS),
        _object_claims,
    ),
    (("{one} {happens}.", "{one} {happens}{when}.", *_SOMETHING_FORMS, *_INTO_FORMS), _event_claims),
    (_FIRST_FORMS, lambda match: [(words.FIRST, match.groupdict().get("one") or match["place"])]),
    (_CAMERA_FORMS, lambda match: [(words.CAMERA, "still" if match["does"] in _STANDS else match["does"])]),
    READS_BACKGROUND,
)
_ABOUT_ALL: tuple[Reader, ...] = (
    (_SHOTS_FORMS, lambda match: [(words.SHOTS, number_of(match["number"]))]),
    *(
        (told, lambda match, cut=cut: [(cut, match["time"])])
        for cut, *told in zip(words.CUTS, *_CUT_FORMS, strict=True)
    ),
)
_SHOT_SLOTS = frozenset(slot[1:] for slot in video_slots(1) if slot[0] == 0)
_SHOT_FORMS, _SUMMARY_FORMS = forms_of(_PARTS, _ABOUT_SHOTS), forms_of(_PARTS, _ABOUT_ALL)
