"""Questions about scenes with their true answers, and what a caption alone answers to them.

The options of a question are the values that can stand in its slot. A segment of a caption is about the shot that holds
more than half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vcap_jax.world.asking import Asked, answer_of, options_of, put, read_question
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_grammar import parse_image
from vcap_jax.world.scenes import Scene, VideoScene
from vcap_jax.world.slots import compared, question_of
from vcap_jax.world.video_grammar import parse_video, shot_of
from vcap_jax.world.vocabulary import Claim, Slot


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


def told_by(caption: str, asked: Asked) -> str | None:
    """The answer that a caption gives; None where it says nothing about it, or several things."""
    claims, about = _claims(caption, asked), question_of(asked.slot)
    answers = {answer_of(slot, value) for slot, value in claims if question_of(slot) == about}
    if about[-1] in ("level", "side"):  # it may ask in the other order than captions are read in
        answers = {value for value in options_of(about) if compared(about[0], about[1], value) in claims}
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
