"""Counting a caption's claims against a scene's facts."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import full_caption
from vcap_jax.world.facts import (
    FactCount,
    caption_claims,
    count_claims,
    count_facts,
    count_inventions,
    scene_facts,
    scene_undecided,
)
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import Scene
from vcap_jax.world.video_grammar import describe_video
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import BACKGROUND, CUTS, SHOTS, Facts, Slot


def test_counts_add_up() -> None:
    count = FactCount(total=10, claims=4, correct=3)
    assert (count.coverage, count.hallucination) == (0.3, 0.25)
    assert FactCount(total=10, claims=0, correct=0).hallucination == 0
    assert FactCount(total=0, claims=1, correct=0).coverage == 0
    assert count + count == FactCount(total=20, claims=8, correct=6)


def test_each_of_several_values_is_a_claim_and_what_nobody_can_tell_is_none() -> None:
    facts: Facts = {("top left", "colour"): "red", ("top left", "size"): "large"}
    hidden: Slot = ("top right", "shape")
    claims = [(("top left", "colour"), "red"), (("top left", "colour"), "blue"), (hidden, "star")]
    assert count_claims(facts, frozenset({hidden}), claims) == FactCount(total=2, claims=2, correct=1)
    assert count_claims(facts, frozenset(), claims) == FactCount(total=2, claims=3, correct=1)
    assert count_claims(facts, frozenset(), claims[:1] * 2) == FactCount(total=2, claims=1, correct=1)


def test_inventions_are_of_places_where_nothing_lies() -> None:
    facts: Facts = {("top left", "colour"): "red", BACKGROUND: "navy"}
    hidden: Slot = ("top right", "shape")
    wrong = [(("top left", "colour"), "blue"), (BACKGROUND, "white"), (("top left", "mark"), "A")]
    assert count_inventions(facts, frozenset({hidden}), wrong) == 0
    beside_the_hidden = [(hidden, "star"), (("top right", "colour"), "red")]
    assert count_inventions(facts, frozenset({hidden}), beside_the_hidden) == 0
    nothing_lies_there = [(("bottom left", "shape"), "star"), (("bottom left", "colour"), "red")]
    assert count_inventions(facts, frozenset({hidden}), [*wrong, *nothing_lies_there * 2]) == 2


@pytest.mark.parametrize("scene", [sample_image_scene(0, 1), sample_video_scene(0, 1)])
def test_a_full_caption_covers_all_and_invents_nothing(scene: Scene) -> None:
    facts = scene_facts(scene)
    assert not scene_undecided(scene) & facts.keys()
    count = count_facts(scene, full_caption(scene, np.random.default_rng(0)))
    assert count == FactCount(total=len(facts), claims=len(facts), correct=len(facts))


def test_claims_under_a_wrong_time_are_wrong() -> None:
    scene = next(
        scene
        for scene in (sample_video_scene(0, i) for i in range(50))
        if [shot.first for shot in scene.shots] == [0, 6]
    )
    facts = scene_facts(scene)
    caption = describe_video(facts, np.random.default_rng(0), segments=[(0.0, 6.0), (0.0, 6.0)])
    count = count_facts(scene, caption)
    assert count.correct == sum(slot in (SHOTS, *CUTS) for slot in facts) == 2
    assert count.claims > 10
    # Whether an object lies where they say cannot be told without the shot: they invent none.
    assert count_inventions(facts, frozenset(), caption_claims(scene, caption)) == 0
