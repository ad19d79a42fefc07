"""Pass rates of captions that follow the model are those of its formulas; of others they are not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from vcap_jax.studies.witnesses import meet
from vcap_jax.world.captions import wrong_claim
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.image_grammar import describe_image


@cache
def scenes():
    """150 of them; drawn by the first test that asks."""
    return {f"s{k}": sample_scene("image", 0, k, "train") for k in range(150)}


def caption(scene, rng, right: int, wrong: int = 0, *, first: bool = False) -> str:
    """So many true facts and so many errors, drawn uniformly; with ``first`` the first ones instead."""
    facts = list(scene_facts(scene).items())
    order = np.arange(len(facts)) if first else rng.permutation(len(facts))
    said = {facts[i][0]: facts[i][1] for i in order[:right]}
    said |= dict(wrong_claim(*facts[i], rng) for i in order[right : right + wrong])
    return describe_image(said, rng)


def met(rng, *, first: bool = False):
    captions = {k: [caption(s, rng, 12, 6, first=first) for _ in range(6)] for k, s in scenes().items()}
    references = {k: [caption(s, rng, 2, first=first) for _ in range(6)] for k, s in scenes().items()}
    return meet(scenes(), captions, references)


def test_uniform_captions_follow_the_formulas():
    found = met(np.random.default_rng(0))
    assert (found.reference == 2).all()
    assert (found.correct == 12).all()
    assert (found.errors == found.errors_at_facts).all()
    assert found.covered.mean() == pytest.approx(found.recall.mean(), abs=0.03)
    assert found.clear.mean() == pytest.approx(found.collision_free().mean(), abs=0.03)
    assert 0.1 < found.covered.mean() < 0.9
    assert 0.1 < found.clear.mean() < 0.9


def test_captions_that_begin_like_their_reference_cover_it_more_often_than_the_formula_says():
    found = met(np.random.default_rng(0), first=True)
    assert found.covered.mean() == 1
    assert found.recall.mean() < 0.7


def test_errors_where_nothing_is_collide_with_no_fact():
    scene = scenes()["s0"]
    taken = {slot[0] for slot in scene_facts(scene)}
    place = next(p for p in ("top left", "top center", "top right", "middle left") if p not in taken)
    text = f"At the {place} is a large red circle."
    found = meet(
        scenes(), {"s0": [text]}, {"s0": [describe_image(scene_facts(scene), np.random.default_rng(0))]}
    )
    assert (found.errors[0], found.errors_at_facts[0], found.clear[0]) == (3, 0, 1)
    assert found.collision_free(at_facts=True)[0] == pytest.approx(1)
    assert found.collision_free()[0] == 0


def test_two_false_claims_about_one_slot_are_one_error():
    """The model draws the slots of errors without replacement."""
    colours = ("red", "blue", "green", "yellow", "purple", "orange")
    scene = scenes()["s0"]
    place = next(slot[0] for slot in scene_facts(scene) if slot[-1] == "colour")
    wrong = [colour for colour in colours if colour != scene_facts(scene)[place, "colour"]][:2]
    text = " ".join(describe_image({(place, "colour"): colour}, np.random.default_rng(0)) for colour in wrong)
    found = meet(
        scenes(), {"s0": [text]}, {"s0": [describe_image(scene_facts(scene), np.random.default_rng(0))]}
    )
    assert (found.errors[0], found.errors_at_facts[0], found.clear[0]) == (1, 1, 0)


def test_references_without_a_true_fact_take_no_part():
    assert len(meet(scenes(), {"s0": ["x"]}, {"s0": ["Nothing."]}).scene) == 0
