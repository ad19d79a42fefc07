"""Short questions about scenes, and what a caption alone answers to them.

A question is about one slot; its options are the values that can stand there. Who covers whom is asked of two objects
together, so its options are their places. A question about a video names the times of a shot, because whoever has the
caption only knows its segments by their times; a segment is about the shot that holds more than half of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_grammar import PLURALS, parse_image
from vcap_jax.world.scenes import Scene, VideoScene
from vcap_jax.world.sentences import alternatives, capitalised
from vcap_jax.world.slots import question_of
from vcap_jax.world.video_grammar import parse_video, shot_of
from vcap_jax.world.vocabulary import (
    BACKGROUND,
    CAMERA,
    CUTS,
    FIRST,
    IMAGE_PLACES,
    LIGHT,
    OBJECTS,
    SHOTS,
    VALUES,
    Claim,
    Slot,
)

WORDINGS = 3
"""How many ways there are to put each question; the first is the plainest."""

_OF_AN_OBJECT = {
    "shape": ("shape", "what shape is at the {place}{when}?"),
    "colour": ("colour", "what colour is at the {place}{when}?"),
    "size": ("size", "what size is at the {place}{when}?"),
    "pattern": ("pattern", "what pattern is at the {place}{when}?"),
    "direction": ("direction", "which way does the one at the {place} point{when}?"),
    "mark": ("mark", "what mark is at the {place}{when}?"),
    "inside": ("colour inside", "what colour is inside the one at the {place}{when}?"),
    "motion": ("motion", "how does the one at the {place} move{when}?"),
    "event": ("event", "what happens to the one at the {place}{when}?"),
    "time": ("time of the event", "when does something happen at the {place}{when}?"),
    "into": ("new colour", "what colour does the one at the {place} turn{when}?"),
}
"""Each kind of fact as a noun, and the plainest question."""
_FORMS: Mapping[str, tuple[str, str, str]] = {
    **{
        kind: (plain, f"what is the {noun} at the {{place}}{{when}}?", f"{noun} at the {{place}}{{when}}?")
        for kind, (noun, plain) in _OF_AN_OBJECT.items()
    },
    "level": (
        "is the one at the {place} higher or lower than the one at the {other}?",
        "is the {place} one higher or lower than the {other} one?",
        "higher or lower, the {place} one beside the {other} one?",
    ),
    "side": (
        "is the one at the {place} further left or further right than the one at the {other}?",
        "is the {place} one further left or right than the {other} one?",
        "further left or right, the {place} one beside the {other} one?",
    ),
    "overlap": (
        "which covers the other, the one at the {place} or the one at the {other}?",
        "which lies in front, the {place} one or the {other} one?",
        "in front, the {place} one or the {other} one?",
    ),
    "objects": ("how many objects are there?", "what is the number of objects?", "number of objects?"),
    "count": ("how many {shapes} are there?", "what is the number of {shapes}?", "number of {shapes}?"),
    "light": ("where does the light come from?", "what is the side of the light?", "side of the light?"),
    "background": (
        "what colour is the background{when}?",
        "what is the background{when}?",
        "background{when}?",
    ),
    "camera": ("what does the camera do{when}?", "how does the camera move{when}?", "camera{when}?"),
    "first": (
        "where does something happen first{when}?",
        "where is the first event{when}?",
        "place of the first event{when}?",
    ),
    "shots": ("how many shots are there?", "what is the number of shots?", "number of shots?"),
    "cut 1": ("when does the scene change first?", "when is the first cut?", "time of the first cut?"),
    "cut 2": ("when does the scene change again?", "when is the second cut?", "time of the second cut?"),
}
_SHAPE_OF = {plural: shape for shape, plural in PLURALS.items()}
_FIXED = {str(slot[-1]): slot for slot in (BACKGROUND, LIGHT, OBJECTS, CAMERA, FIRST, SHOTS, *CUTS)}
_PARTS = {
    "place": rf"(?P<place>{alternatives(IMAGE_PLACES)})",
    "other": rf"(?P<other>{alternatives(IMAGE_PLACES)})",
    "shapes": rf"(?P<shapes>{alternatives(_SHAPE_OF)})",
    "when": r"(?: from (?P<start>\d+\.\d) to (?P<end>\d+\.\d) seconds)?",
}
_READERS = tuple(
    (kind, re.compile(template.replace("?", r"\?").format(**_PARTS)))
    for kind, templates in _FORMS.items()
    for template in templates
)


@dataclass(frozen=True)
class Asked:
    """What a question is about. span: start and end in seconds of a video's shot, which its slot then lacks."""

    slot: Slot
    span: tuple[float, float] | None = None


class Question(NamedTuple):
    """A question with its options, one of which is the true answer."""

    text: str
    options: tuple[str, ...]
    answer: str


def scene_questions(scene: Scene, captions: Sequence[str] | None = None) -> list[Question]:
    """A question in plain words about each fact of a scene, in the order of its facts.

    captions: ask only what one of these answers rightly: the true facts that it states without contradicting itself.
        None asks about all.
    """
    asked = []
    for slot, value in scene_facts(scene).items():
        put = Question(question(scene, slot), options_of(slot), answer_of(slot, value))
        meant = read_question(put.text)
        assert meant is not None  # it is read as it is put
        if captions is None or any(told_by(caption, meant) == put.answer for caption in captions):
            asked.append(put)
    return asked


def question(scene: Scene, slot: Slot, wording: int = 0) -> str:
    """The question about one slot of a scene, in the wording of this number, below ``WORDINGS``."""
    if isinstance(scene, VideoScene) and isinstance(slot[0], int):
        return put(Asked(slot[1:], scene.shots[slot[0]].seconds), wording)
    return put(Asked(slot), wording)


def put(asked: Asked, wording: int = 0) -> str:
    """The question that asks this, in the wording of this number, below ``WORDINGS``."""
    owner, *others, kind = question_of(asked.slot)
    words = {"place": owner, "other": others[0] if others else "", "when": when(asked.span)}
    if kind == "count":
        words["shapes"] = PLURALS[str(others[0])]
    return capitalised(_FORMS[str(kind)][wording].format(**words))


def when(span: tuple[float, float] | None) -> str:
    """How a question names start and end of a shot in seconds; empty for None."""
    return "" if span is None else f" from {span[0]:.1f} to {span[1]:.1f} seconds"


def options_of(slot: Slot) -> tuple[str, ...]:
    """What can be answered to the question about a slot."""
    if slot[-1] == "overlap":
        one, other, _ = question_of(slot)
        return str(one), str(other)
    return VALUES[str(slot[-1])]


def answer_of(slot: Slot, value: str) -> str:
    """What a slot's value answers to the question about it: the value, or the place of who covers the other."""
    return str(slot[0]) if slot[-1] == "overlap" else value


def read_question(text: str) -> Asked | None:
    """What a question asks, in any wording; None for one that :func:`question` does not put."""
    plain = text[:1].lower() + text[1:]
    for kind, pattern in _READERS:
        if (match := pattern.fullmatch(plain)) is not None:
            found = match.groupdict()
            span = None if found.get("start") is None else (float(found["start"]), float(found["end"]))
            return Asked(_slot(kind, found), span)
    return None


def _slot(kind: str, found: Mapping[str, str]) -> Slot:
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "count":
        return ("scene", _SHAPE_OF[found["shapes"]], kind)
    if "other" in found:
        return (found["place"], found["other"], kind)
    return (found["place"], kind)


def told_by(caption: str, asked: Asked) -> str | None:
    """The answer that a caption gives; None where it says nothing about it, or several things."""
    about = question_of(asked.slot)
    answers = {
        answer_of(slot, value) for slot, value in _claims(caption, asked) if question_of(slot) == about
    }
    return answers.pop() if len(answers) == 1 else None


def _claims(caption: str, asked: Asked) -> Sequence[Claim]:
    if asked.span is None and asked.slot[0] != "video":
        return parse_image(caption).claims
    parsed = parse_video(caption)
    if asked.span is None:
        sentences = parsed.summary
    else:
        inside = [part for part in parsed.segments if shot_of(part.start, part.end, [asked.span]) == 0]
        sentences = tuple(sentence for part in inside for sentence in part.sentences)
    return [claim for sentence in sentences for claim in sentence.claims]
