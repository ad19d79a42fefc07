"""What a policy sees: the share of short questions that it answers rightly, by the kind of what is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from vcap_jax.models.family import Features
from vcap_jax.recipes.teaching.lessons import Lesson, fact_lesson, place_lesson, places_of
from vcap_jax.recipes.teaching.packing import Continuation, batched
from vcap_jax.recipes.teaching.pupil import Pupil, caption_logits
from vcap_jax.recipes.teaching.scenery import Scenery
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.scenes import Modality, Scene

_AT_ONCE = 16
_QUESTIONS = 64
"""Of a scene, in one call."""


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
    features = pupil.looked(scenery, modality)
    width = 64
    for first in range(0, len(scenery.scenes), _AT_ONCE):
        rows = range(first, min(first + _AT_ONCE, len(scenery.scenes)))
        lessons = [asked(scenery.scenes[row], row) for row in rows]
        for start in range(0, max(map(len, lessons)), _QUESTIONS):
            some = [own[start : start + _QUESTIONS] for own in lessons]
            groups = [_filled([pupil.packer.lesson(one) for one in own]) for own in some]
            batch = batched(groups, width)
            prompt = pupil.prompts[modality].openings(len(rows))
            shown: Features = jax.tree.map(lambda leaf, rows=list(rows): leaf[rows], features)
            said = np.asarray(predict(pupil.visual, pupil.rest, prompt, shown, batch.tokens))
            place = np.arange(width)
            learned = (place >= batch.starts[..., None]) & (place < batch.lengths[..., None])
            exact = ((said == batch.tokens) | ~learned).all(-1)
            for own, found in zip(some, exact.tolist(), strict=True):
                for lesson, good in zip(own, found, strict=False):
                    all_of[lesson.kind] += 1
                    right[lesson.kind] += good
    return {kind: right[kind] / all_of[kind] for kind in sorted(all_of)}


def _filled(group: Sequence[Continuation]) -> list[Continuation]:
    """As many as a call takes; what is missing is empty."""
    return [*group, *[Continuation((), 0)] * (_QUESTIONS - len(group))]
