"""Questions about scenes, and what a caption alone answers to them.

A question is a slot in English; its options are the values that can stand there. One about a video names a moment
instead of a shot, because whoever has the caption only knows its segments by their times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vcap_jax.world import grammar, video_grammar
from vcap_jax.world.captions import VALUES
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.scenes import IMAGE_PLACES, Scene, VideoScene
from vcap_jax.world.sentences import Claim, Slot, alternatives

_BACKGROUND = "What is the colour of the background?"
_CUT = "At how many seconds does the scene change?"
_OBJECT = "What is the {attribute} of the object at the {place}?"
_MOVING = "What is the {attribute} of the object at the {place} at {seconds:.1f} seconds?"
_ASKED = re.compile(
    rf"What is the (?P<attribute>{alternatives({*grammar.ATTRIBUTES, *video_grammar.ATTRIBUTES})}) of the object "
    rf"at the (?P<place>{alternatives(IMAGE_PLACES)})(?: at (?P<seconds>\d+\.\d) seconds)?\?"
)


@dataclass(frozen=True)
class Asked:
    """What a question is about. seconds: the moment in a video; its slot then lacks the shot."""

    slot: Slot
    seconds: float | None = None


def scene_questions(
    scene: Scene, captions: Sequence[str] | None = None
) -> list[tuple[str, tuple[str, ...], str]]:
    """Question, options and true answer for facts of a scene, in the order of its facts.

    captions: ask only about the facts that one of these states; None asks about all.
    """
    facts = scene_facts(scene)
    told = (
        set(facts.items())
        if captions is None
        else {claim for caption in captions for claim in caption_claims(scene, caption)}
    )
    return [
        (question(scene, slot), tuple(VALUES[str(slot[-1])]), value)
        for slot, value in facts.items()
        if (slot, value) in told
    ]


def question(scene: Scene, slot: Slot) -> str:
    """The question about one slot of a scene."""
    if slot == grammar.BACKGROUND:
        return _BACKGROUND
    if slot == video_grammar.CUT:
        return _CUT
    if isinstance(scene, VideoScene):
        shot, place, attribute = slot
        first, last = scene.shots[int(shot)].seconds
        return _MOVING.format(attribute=attribute, place=place, seconds=(first + last) / 2)
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
    seconds = None if match["seconds"] is None else float(match["seconds"])
    return Asked((match["place"], match["attribute"]), seconds)


def told_by(caption: str, asked: Asked) -> str | None:
    """The answer that a caption gives; None where it says nothing about it, or several things."""
    values = {value for slot, value in _claims(caption, asked) if slot == asked.slot}
    return values.pop() if len(values) == 1 else None


def _claims(caption: str, asked: Asked) -> list[Claim]:
    if asked.slot != video_grammar.CUT and asked.seconds is None:
        return list(grammar.parse_image(caption).claims)
    parsed = video_grammar.parse_video(caption)
    if asked.seconds is None:
        sentences = parsed.summary
    else:
        at = asked.seconds
        sentences = tuple(
            s for part in parsed.segments if part.start <= at < part.end for s in part.sentences
        )
    return [claim for sentence in sentences for claim in sentence.claims]
