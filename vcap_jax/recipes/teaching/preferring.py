"""What a policy would say: led through full, true captions, how often it prefers the true value to every other.

Each fact of a scene is told by a full caption, and by others that differ from it in that fact's value alone. Where such
a caption parts from the true one, the policy's probabilities of the two next tokens are compared. A fact counts if
none of the other values is preferred. Who covers whom is left out: turned round, it is another sentence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from vcap_jax.models.family import Features
from vcap_jax.recipes.teaching.packing import Continuation, Packer, batched
from vcap_jax.recipes.teaching.pupil import Pupil, caption_logits
from vcap_jax.recipes.teaching.scenery import Scenery
from vcap_jax.world.captions import say
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.scenes import Modality, Scene
from vcap_jax.world.vocabulary import VALUES, Slot

_AT_ONCE = 16
_WIDTH = 256


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
    features = pupil.looked(scenery, modality)
    right, all_of = Counter[str](), Counter[str]()
    for first in range(0, len(scenery.scenes), _AT_ONCE):
        rows = np.arange(first, min(first + _AT_ONCE, len(scenery.scenes)))
        told = [choices(scenery.scenes[row], pupil.packer, row) for row in rows.tolist()]
        batch = batched([[Continuation(tokens, 0)] for tokens, _ in told], _WIDTH)
        shown: Features = jax.tree.map(lambda leaf, rows=rows: leaf[rows], features)
        prompt = pupil.prompts[modality].requests(len(rows))
        logits = np.asarray(logits_of(pupil.visual, pupil.rest, prompt, shown, batch.tokens))
        for row, (_, found) in zip(logits[:, 0], told, strict=True):
            for choice in found:
                all_of[choice.kind] += 1
                right[choice.kind] += all(row[i, true] > row[i, other] for i, true, other in choice.partings)
    return {kind: right[kind] / all_of[kind] for kind in sorted(all_of)}
