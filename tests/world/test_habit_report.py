"""Captions in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.captions import full_caption
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.habit_report import report_habit
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.vocabulary import BACKGROUNDS, OBJECTS


def test_shares_and_rates() -> None:
    scene = sample_image_scene(0, 0)
    facts = scene_facts(scene)
    wrong = next(name for name in BACKGROUNDS if name != scene.background)
    first = f"There are {facts[OBJECTS]} objects. The background is {wrong}."
    report = report_habit([(scene, first), (scene, f"The background is {scene.background}. Nothing else.")])
    total = len(facts)
    assert report.captions == 2
    assert report.mean_stated == pytest.approx(1.5 / total)
    assert report.largest_stated == pytest.approx(2 / total)
    assert report.beyond_half == 0
    assert report.coverage == pytest.approx(1 / total)
    assert report.false_share == pytest.approx(1 / 3)
    assert report.mention_rates["objects"] == 0.5
    assert report.mention_rates["background"] == 1
    assert report.mention_rates["shape"] == 0
    assert report.false_rates == {"background": 0.5, "objects": 0}


def test_captions_of_more_than_half_the_facts_are_counted() -> None:
    scene = sample_image_scene(0, 0)
    whole = full_caption(scene, np.random.default_rng(0))
    assert report_habit([(scene, whole), (scene, "Nothing."), (scene, "")]).beyond_half == pytest.approx(
        1 / 3
    )


def test_no_captions_are_refused() -> None:
    with pytest.raises(ValueError, match="no captions"):
        report_habit([])
