"""Full and weak captions."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from vcap_jax.world.captions import WeakSettings, weak_caption, weaken, wrong_claim, wrong_value
from vcap_jax.world.facts import FactCount, count_facts, scene_facts
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.scenes import Scene
from vcap_jax.world.video_scenes import sample_video_scene

NOTHING = WeakSettings(omit_object=0, omit_fact=0, wrong_fact=0, invent_object=0)


@cache
def scenes() -> list[Scene]:
    """Pictures and clips; drawn by the first test that asks."""
    return [sample(0, k) for sample in (sample_image_scene, sample_video_scene) for k in range(40)]


def test_each_setting_does_what_it_says() -> None:
    rng = np.random.default_rng(0)
    wrong = WeakSettings(omit_object=0, omit_fact=0, wrong_fact=1, invent_object=0)
    silent = WeakSettings(omit_object=1, omit_fact=1, invent_object=0)
    for scene in scenes():
        facts = scene_facts(scene)
        assert weaken(scene, facts, rng, NOTHING) == facts
        weak = weaken(scene, facts, rng, wrong)
        assert len(weak) == len(facts)
        assert not weak.items() & facts.items()
        ((slot, value),) = weaken(scene, facts, rng, silent).items()
        assert facts[slot] == value
        without = weaken(
            scene, facts, rng, WeakSettings(omit_object=1, omit_fact=0, wrong_fact=0, invent_object=0)
        )
        assert not any(slot[-1] in ("shape", "level", "overlap", "event") for slot in without)


def test_an_invented_object_stands_where_there_is_none() -> None:
    rng = np.random.default_rng(1)
    for scene in scenes():
        facts = scene_facts(scene)
        weak = weaken(
            scene, facts, rng, WeakSettings(omit_object=0, omit_fact=0, wrong_fact=0, invent_object=1)
        )
        invented = weak.keys() - facts.keys()
        assert {slot[-1] for slot in invented} in ({"shape", "colour", "size"}, set())
        assert facts.items() <= weak.items()


def test_weak_captions_of_the_defaults_tell_about_half_and_err_in_a_sixth() -> None:
    rng = np.random.default_rng(2)
    total = FactCount(total=0, claims=0, correct=0)
    for scene in scenes():
        total += count_facts(scene, weak_caption(scene, rng))
    assert 0.4 < total.coverage < 0.6
    assert 0.08 < total.hallucination < 0.25


def test_a_wrong_claim_is_another_one() -> None:
    rng = np.random.default_rng(3)
    assert wrong_claim(("a", "b", "overlap"), "covers", rng) == (("b", "a", "overlap"), "covers")
    assert wrong_value(("scene", "light"), "left", rng) in ("right", "above", "below")
    with pytest.raises(ValueError, match="no other value"):
        wrong_value(("a", "b", "overlap"), "covers", rng)
