"""Questions about scenes, and what a caption alone answers to them.

A question is a slot in English; its options are the values that can stand there. One about a video names the times of
a shot, because whoever has the caption only knows its segments by their times; a segment is about the shot that holds
more than half of it, as everywhere in this world.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vcap_jax.world import grammar, video_grammar
from vcap_jax.world.captions import VALUES
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.scenes import IMAGE_PLACES, Scene, VideoScene
from vcap_jax.world.sentences import Claim, Slot, alternatives

_BACKGROUND = "What is the colour of the background?"
_CUT = "At how many seconds does the scene change?"
_OBJECT = "What is the {attribute} of the object at the {place}?"
_MOVING = "What is the {attribute} of the object at the {place} from {start:.1f} to {end:.1f} seconds?"
_ASKED = re.compile(
    rf"What is the (?P<attribute>{alternatives({*grammar.ATTRIBUTES, *video_grammar.ATTRIBUTES})}) of the object "
    rf"at the (?P<place>{alternatives(IMAGE_PLACES)})(?: from (?P<start>\d+\.\d) to (?P<end>\d+\.\d) seconds)?\?"
)


@dataclass(frozen=True)
class Asked:
    """What a question is about. span: start and end in seconds of a video's shot, which its slot then lacks."""

    slot: Slot
    span: tuple[float, float] | None = None


def scene_questions(
    scene: Scene, captions: Sequence[str] | None = None
) -> list[tuple[str, tuple[str, ...], str]]:
    """Question, options and true answer for facts of a scene, in the order of its facts.

    captions: ask only what one of these answers rightly: the true facts that it states without contradicting itself.
        None asks about all.
    """
    asked = []
    for slot, value in scene_facts(scene).items():
        text = question(scene, slot)
        meant = read_question(text)
        assert meant is not None  # it is read as it is put
        if captions is None or any(told_by(caption, meant) == value for caption in captions):
            asked.append((text, tuple(VALUES[str(slot[-1])]), value))
    return asked


def question(scene: Scene, slot: Slot) -> str:
    """The question about one slot of a scene."""
    if slot == grammar.BACKGROUND:
        return _BACKGROUND
    if slot == video_grammar.CUT:
        return _CUT
    if isinstance(scene, VideoScene):
        shot, place, attribute = slot
        first, last = scene.shots[int(shot)].seconds
        return _MOVING.format(attribute=attribute, place=place, start=first, end=last)
    place, attribute = slot
    return _OBJECT.format(attribute=attribute, place=place)


def read_question(text: str) -> Asked | None:
    """What a question asks; None for one that :func:`question` does not put."""
    if text == _BACKGROUND:
        return Asked(grammar.BACKGROUND)
    if text == _CUT:
        return Asked(video_grammar.CUT)
    match = _ASKED.fullmatch(text)
    if match is None:
        return None
    span = None if match["start"] is None else (float(match["start"]), float(match["end"]))
    return Asked((match["place"], match["attribute"]), span)


def told_by(caption: str, asked: Asked) -> str | None:
    """The answer that a caption gives; None where it says nothing about it, or several things."""
    values = {value for slot, value in _claims(caption, asked) if slot == asked.slot}
    return values.pop() if len(values) == 1 else None


def _claims(caption: str, asked: Asked) -> list[Claim]:
    if asked.slot != video_grammar.CUT and asked.span is None:
        return list(grammar.parse_image(caption).claims)
    parsed = video_grammar.parse_video(caption)
    if asked.span is None:
        sentences = parsed.summary
    else:
        inside = [p for p in parsed.segments if video_grammar.shot_of(p.start, p.end, [asked.span]) == 0]
        sentences = tuple(sentence for part in inside for sentence in part.sentences)
    return [claim for sentence in sentences for claim in sentence.claims]
