"""Real captions against real references: how often the two tests of the paper are passed, and how often they should be.

The model of Section 2.3 draws references, correct facts and errors uniformly and independently from N slots. Captions
and references of a policy are not drawn like that: both speak first of what is easy to see. In the embedded world N, m,
c and n are counted for every caption, so the formula's probability can be compared with what happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vcap_jax.report.summary import Counts
from vcap_jax.studies.estimates import Ratio
from vcap_jax.studies.theory import log_avoid
from vcap_jax.world.facts import caption_claims, scene_facts, scene_undecided
from vcap_jax.world.scenes import Scene
from vcap_jax.world.slots import question_of


@dataclass(frozen=True, kw_only=True)
class Meetings:
    """Captions that met a reference with m > 0 true facts; arrays of one row per caption.

    scene: its place in the order of scenes, of ``scenes`` in all. facts N, reference m, correct c, errors n - c, and of
    these those at a slot that the picture has: an object at an empty place can collide with no fact. All are slots, as
    the model draws them: two false claims about one are one error. Claims about what the pixels leave open are neither.
    covered: R inside C. clear: E and R apart.
    """

    scene: Counts
    facts: Counts
    reference: Counts
    correct: Counts
    errors: Counts
    errors_at_facts: Counts
    covered: Counts
    clear: Counts
    scenes: int

    @property
    def recall(self) -> np.ndarray:
        """P_recall of every caption."""
        return np.exp(log_avoid(self.facts - self.correct, self.reference, self.facts))

    def collision_free(self, *, at_facts: bool = False) -> np.ndarray:
        """P_coll of every caption, for all its errors or for those at slots that the picture has.

        A caption with more errors than the picture has slots counts as one with N.
        """
        errors = self.errors_at_facts if at_facts else self.errors
        return np.exp(log_avoid(np.minimum(errors, self.facts), self.reference, self.facts))

    def by_scene(self, values: np.ndarray) -> Ratio:
        """Sums and numbers over scenes of a value for each caption, as ``estimates`` takes them."""
        return (
            np.bincount(self.scene, values.astype(np.float64), self.scenes),
            np.bincount(self.scene, minlength=self.scenes).astype(np.float64),
        )


_COLUMNS = ("scene", "facts", "reference", "correct", "errors", "errors_at_facts", "covered", "clear")


def meet(
    scenes: Mapping[str, Scene],
    captions: Mapping[str, Sequence[str]],
    references: Mapping[str, Sequence[str]],
) -> Meetings:
    """Every caption with every reference of its scene; one without a reference meets nothing. Raises KeyError for a
    caption without a scene."""
    rows: list[tuple[int, ...]] = []
    for place, (identity, texts) in enumerate(captions.items()):
        scene = scenes[identity]
        facts, undecided = scene_facts(scene), scene_undecided(scene)
        asked = {question_of(slot) for slot in facts}
        told = [
            [claim for claim in caption_claims(scene, text) if claim[0] not in undecided] for text in texts
        ]
        for reference in references.get(identity, ()):
            claimed = caption_claims(scene, reference)
            witness = {question_of(slot) for slot, value in claimed if facts.get(slot) == value}
            if not witness:
                continue
            for claims in told:
                right = {question_of(slot) for slot, value in claims if facts.get(slot) == value}
                wrong = {question_of(slot) for slot, value in claims if facts.get(slot) != value}
                numbers = (len(facts), len(witness), len(right), len(wrong), len(asked & wrong))
                rows.append((place, *numbers, witness <= right, not witness & wrong))
    columns = np.array(rows, np.int64).reshape(-1, len(_COLUMNS)).T
    return Meetings(scenes=len(captions), **dict(zip(_COLUMNS, columns, strict=True)))
