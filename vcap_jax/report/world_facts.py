"""Captions of the embedded world against the facts of its scenes: coverage c / N and hallucination (n - c) / n.

Nothing is estimated here. Scenes have a known fact set, the grammar reads claims out of captions, and both are
counted (paper, Section 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vcap_jax.report.samples import SampleFact
from vcap_jax.report.summary import InventionCounts
from vcap_jax.world.facts import (
    caption_claims,
    count_claims,
    count_inventions,
    scene_facts,
    scene_undecided,
)
from vcap_jax.world.scenes import Scene
from vcap_jax.world.slots import slot_words
from vcap_jax.world.vocabulary import Slot


def count_captions(
    scenes: Mapping[str, Scene], captions: Mapping[str, Sequence[str]], *, each: int = 1
) -> InventionCounts:
    """Counts over all of ``scenes`` [S], in their order; several captions of one scene are added up.

    captions: by scene id. each: how many were asked of a scene. Those that are not there, as a pool has no entry for an
    empty text, are empty captions: they cover nothing and claim nothing, and the scene counts all the same.
    Raises KeyError for an id without a scene.
    """
    if unknown := captions.keys() - scenes.keys():
        raise KeyError(f"there is no scene {min(unknown)!r}")
    found = ((scene, tuple(captions.get(identity, ()))) for identity, scene in scenes.items())
    return _counts((scene, texts + ("",) * (each - len(texts))) for scene, texts in found)


def fact_metrics(
    scenes: Mapping[str, Scene], groups: Iterable[tuple[str, Sequence[str]]]
) -> dict[str, float]:
    """Coverage, hallucination and the share of claims that are of objects where nothing lies, of a step's captions;
    the last two are 0 where nothing is claimed.

    groups: scene id and captions of each; a scene may have several. Raises KeyError for an id without a scene.
    """
    counts = _counts((scenes[identity], texts) for identity, texts in groups)
    correct, claims = int(counts.correct.sum()), int(counts.claims.sum())
    return {
        "facts/coverage": correct / int(counts.facts.sum()),
        "facts/hallucination": (claims - correct) / max(claims, 1),
        "facts/invented_share": int(counts.invented.sum()) / max(claims, 1),
    }


def _counts(captioned: Iterable[tuple[Scene, Sequence[str]]]) -> InventionCounts:
    rows = []
    for scene, texts in captioned:
        known = scene_facts(scene), scene_undecided(scene)
        claimed = [caption_claims(scene, text) for text in texts]
        counts = [count_claims(*known, claims) for claims in claimed]
        rows.append(
            (
                len(texts) * len(known[0]),
                sum(count.claims for count in counts),
                sum(count.correct for count in counts),
                len(texts),
                sum(count_inventions(*known, claims) for claims in claimed),
            )
        )
    facts, claims, correct, captions, invented = np.array(rows, np.int64).reshape(-1, 5).T
    return InventionCounts(facts, claims, correct, captions, invented)


def fact_list(scene: Scene, caption: str) -> tuple[SampleFact, ...]:
    """What a caption gets right, gets wrong and leaves out, in words, for the sample page; claims about what the pixels
    leave open are left out."""
    facts, undecided = scene_facts(scene), scene_undecided(scene)
    claims = [claim for claim in caption_claims(scene, caption) if claim[0] not in undecided]
    said = [
        SampleFact(text=_words(slot, value), verdict="true" if facts.get(slot) == value else "false")
        for slot, value in claims
    ]
    told = {slot for slot, value in claims if facts.get(slot) == value}
    missing = [
        SampleFact(text=_words(slot, value), verdict="missing")
        for slot, value in facts.items()
        if slot not in told
    ]
    return (*said, *missing)


def _words(slot: Slot, value: str) -> str:
    return f"{slot_words(slot)}: {value}"
