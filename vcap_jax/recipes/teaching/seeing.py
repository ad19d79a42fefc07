"""What a policy sees, and what it would say, by the kind of fact.

It sees what it answers rightly when it is asked by a short question. It would say a fact if, led through a full, true
caption, it prefers the true value to every other. Each fact is told by a full caption, and by others that differ from
it in that fact's value alone. Where such a caption parts from the true one, the policy's probabilities of the two next
tokens are compared. A fact counts if none of the other values is preferred. Who covers whom is left out: turned round,
it is another sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from vcap_jax.models.family import Features
from vcap_jax.recipes.teaching.corpus import Continuation, Lesson, Packer, batched, fact_lesson, place_lesson
from vcap_jax.recipes.teaching.pupil import Pupil, Scenery, caption_logits
from vcap_jax.world.captions import say
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.scenes import Modality, Scene, places_of
from vcap_jax.world.vocabulary import VALUES, Slot

_AT_ONCE = 16
_QUESTIONS = 64
"""Of a scene, in one call."""
_LESSON, _CAPTION = 64, 256
"""Tokens that there is room for."""


def asked(scene: Scene, seed: int) -> list[Lesson]:
    """All that is asked about a scene, in wordings drawn by ``seed``."""
    facts, rng = scene_facts(scene), np.random.default_rng(seed)
    about_facts = [fact_lesson(scene, facts, slot, rng) for slot in facts]
    return [*about_facts, *(place_lesson(scene, facts, owner, rng) for owner in places_of(scene))]


def seeing(pupil: Pupil, modality: Modality, scenery: Scenery) -> dict[str, float]:
    """Share of right answers by kind, an answer being right if it is the true one word for word.

    Every token of the true answer is the most probable one after those before it: then the policy left alone gives
    that answer, and only then.
    """
    predict = jax.jit(lambda *given: caption_logits(pupil.graphdef, *given).argmax(-1))
    right, all_of = Counter[str](), Counter[str]()
    place = np.arange(_LESSON)
    for rows, shown in _in_turn(pupil, modality, scenery):
        prompt = pupil.prompts[modality].openings(len(rows))
        lessons = [asked(scenery.scenes[row], row) for row in rows]
        for start in range(0, max(map(len, lessons)), _QUESTIONS):
            some = [own[start : start + _QUESTIONS] for own in lessons]
            batch = batched([_filled([pupil.packer.lesson(one) for one in own]) for own in some], _LESSON)
            said = np.asarray(predict(pupil.visual, pupil.rest, prompt, shown, batch.tokens))
            learned = (place >= batch.starts[..., None]) & (place < batch.lengths[..., None])
            exact = ((said == batch.tokens) | ~learned).all(-1)
            for own, found in zip(some, exact.tolist(), strict=True):
                for lesson, good in zip(own, found, strict=False):
                    all_of[lesson.kind] += 1
                    right[lesson.kind] += good
    return {kind: right[kind] / all_of[kind] for kind in sorted(all_of)}


def _in_turn(pupil: Pupil, modality: Modality, scenery: Scenery) -> Iterator[tuple[list[int], Features]]:
    """Rows of a few scenes at a time, with what the vision tower makes of their pictures."""
    features = pupil.looked(scenery, modality)
    for first in range(0, len(scenery.scenes), _AT_ONCE):
        rows = list(range(first, min(first + _AT_ONCE, len(scenery.scenes))))
        yield rows, jax.tree.map(lambda leaf, rows=rows: leaf[rows], features)


def _filled(group: Sequence[Continuation]) -> list[Continuation]:
    """As many as a call takes; what is missing is empty."""
    return [*group, *[Continuation((), 0)] * (_QUESTIONS - len(group))]


@dataclass(frozen=True)
class Choice:
    """A fact of the kind; where other values part from the true one: (place, true token, other token)."""

    kind: str
    partings: tuple[tuple[int, int, int], ...]


def choices(scene: Scene, packer: Packer, seed: int) -> tuple[tuple[int, ...], list[Choice]]:
    """The tokens of a full caption in the wording of ``seed``, and the choices of value in it."""
    facts = scene_facts(scene)

    def tokens(slot: Slot | None = None, value: str = "") -> tuple[int, ...]:
        told = facts if slot is None else {**facts, slot: value}
        return packer.caption(say(scene, told, np.random.default_rng(seed))).tokens

    true, found = tokens(), []
    for slot, value in facts.items():
        others = [other for other in VALUES[str(slot[-1])] if other != value]
        if others:
            found.append(
                Choice(str(slot[-1]), tuple(_parting(true, tokens(slot, other)) for other in others))
            )
    return true, found


def _parting(true: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, int, int]:
    place = next(i for i, (one, two) in enumerate(zip(true, other, strict=False)) if one != two)
    return place, true[place], other[place]


def preferring(pupil: Pupil, modality: Modality, scenery: Scenery) -> dict[str, float]:
    """Share of the facts whose true value is preferred, by kind."""
    logits_of = jax.jit(partial(caption_logits, pupil.graphdef))
    right, all_of = Counter[str](), Counter[str]()
    for rows, shown in _in_turn(pupil, modality, scenery):
        told = [choices(scenery.scenes[row], pupil.packer, row) for row in rows]
        batch = batched([[Continuation(tokens, 0)] for tokens, _ in told], _CAPTION)
        prompt = pupil.prompts[modality].requests(len(rows))
        logits = np.asarray(logits_of(pupil.visual, pupil.rest, prompt, shown, batch.tokens))
        for row, (_, found) in zip(logits[:, 0], told, strict=True):
            for choice in found:
                all_of[choice.kind] += 1
                right[choice.kind] += all(row[i, true] > row[i, other] for i, true, other in choice.partings)
    return {kind: right[kind] / all_of[kind] for kind in sorted(all_of)}
