"""Judging without a witness: a holistic look (the paper's ablation "- reference caption").

Nobody marks slots, so attention goes to what stands out: shape and colour of the most prominent objects, and
the impression is one of three levels. Fine facts and the rest of the picture are not weighed, which is just
what the paper says a judge loses without a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_judge.embedded.adjudication import Adjudication, adjudicate
from vcap_jax.world.noisy_perception import ImperfectSight
from vcap_jax.world.vocabulary import Claim, Slot

SALIENT = ("shape", "colour")
LEVELS = ((0.9, 8), (0.5, 5), (0.0, 2))
"""(least share, score), best first."""
_NO_IMPRESSION = 5


def salient_claims(sight: ImperfectSight) -> list[Claim]:
    """Shape and colour, as they are perceived, of the most prominent objects (``perception.attention`` of them); of
    equals, the first in reading order."""
    prominent = sorted(sight.prominence, key=lambda owner: -sight.prominence[owner])
    noticed = prominent[: sight.perception.attention]
    slots: list[Slot] = [(*owner, attribute) for owner in noticed for attribute in SALIENT]
    return [(slot, sight.facts[slot]) for slot in slots if slot in sight.facts]


def impression(candidate: Sequence[Claim], sight: ImperfectSight) -> Adjudication:
    """The problems among salient facts; its counts are to be read through ``coarse_score``."""
    return adjudicate(candidate, salient_claims(sight), sight.verdict, sight.unknown)


def coarse_score(part: int, whole: int, levels: Sequence[tuple[float, int]] = LEVELS) -> int:
    """A share as one of a few levels."""
    if whole == 0:
        return _NO_IMPRESSION
    return next(score for least, score in levels if part / whole >= least)


def coarse_scores(outcome: Adjudication) -> Mapping[str, int]:
    """Correctness and completeness of an impression."""
    return {
        "Correctness": coarse_score(outcome.survived, outcome.armed),
        "Completeness": coarse_score(outcome.covered, outcome.supported),
    }
