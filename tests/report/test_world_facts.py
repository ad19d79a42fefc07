"""Captions counted against the facts of scenes: every scene counts, and every group of a step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from vcap_jax.report import world_facts
from vcap_jax.report.world_facts import count_captions, fact_list, fact_metrics
from vcap_jax.world.captions import full_caption
from vcap_jax.world.facts import caption_claims, scene_facts
from vcap_jax.world.image_scenes import sample_image_scene

SCENES = {f"s{n}": sample_image_scene(0, n) for n in range(3)}
FULL = {name: full_caption(scene, np.random.default_rng(0)) for name, scene in SCENES.items()}
FACTS = {name: len(scene_facts(scene)) for name, scene in SCENES.items()}


def test_a_scene_without_a_caption_counts_as_one_of_which_nothing_is_said() -> None:
    counts = count_captions(SCENES, {"s2": [FULL["s2"]], "s0": [FULL["s0"]]})
    assert counts.facts.tolist() == list(FACTS.values())
    assert counts.correct.tolist() == counts.claims.tolist() == [FACTS["s0"], 0, FACTS["s2"]]
    assert counts.captions.tolist() == [1, 1, 1]
    silent = count_captions(SCENES, {"s2": [FULL["s2"]], "s0": [FULL["s0"]], "s1": [""]})
    for name in ("facts", "claims", "correct", "captions"):
        np.testing.assert_array_equal(getattr(silent, name), getattr(counts, name))


def test_captions_that_were_asked_for_and_are_not_there_are_empty_ones() -> None:
    counts = count_captions(SCENES, {"s0": [FULL["s0"]], "s1": [FULL["s1"]] * 3}, each=2)
    assert counts.captions.tolist() == [2, 3, 2]
    assert counts.facts.tolist() == [2 * FACTS["s0"], 3 * FACTS["s1"], 2 * FACTS["s2"]]
    assert counts.correct.tolist() == [FACTS["s0"], 3 * FACTS["s1"], 0]


def test_captions_of_no_scene_are_refused_by_name() -> None:
    with pytest.raises(KeyError, match="s9"):
        count_captions(SCENES, {"s9": ["x"]})
    with pytest.raises(KeyError, match="s9"):
        fact_metrics(SCENES, [("s9", ["x"])])


def test_a_scene_that_occurs_twice_in_a_step_counts_twice() -> None:
    groups = [("s0", [FULL["s0"]] * 2), ("s1", ["", ""]), ("s0", ["", ""])]
    covered, total = 2 * FACTS["s0"], 4 * FACTS["s0"] + 2 * FACTS["s1"]
    assert fact_metrics(SCENES, groups) == {
        "facts/coverage": covered / total,
        "facts/hallucination": 0.0,
        "facts/invented_share": 0.0,
    }


def test_a_list_of_facts_has_what_is_right_wrong_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, caption, facts = SCENES["s0"], FULL["s0"], dict(scene_facts(SCENES["s0"]))
    slot, _ = caption_claims(scene, caption)[0]

    def verdicts(caption: str) -> Counter[str]:
        return Counter(fact.verdict for fact in fact_list(scene, caption))

    assert verdicts(caption) == {"true": len(facts)}
    assert verdicts("") == {"missing": len(facts)}
    monkeypatch.setattr(world_facts, "scene_facts", lambda _: {**facts, slot: "another"})
    assert verdicts(caption) == {"true": len(facts) - 1, "false": 1, "missing": 1}
    # What the pixels leave open is no fact, and no claim about it is wrong.
    del facts[slot]
    monkeypatch.setattr(world_facts, "scene_facts", lambda _: facts)
    monkeypatch.setattr(world_facts, "scene_undecided", lambda _: frozenset({slot}))
    assert verdicts(caption) == {"true": len(facts)}
