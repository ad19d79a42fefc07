"""The study of the embedded world: sound, repeatable, and with right verdicts that follow from the facts."""

from __future__ import annotations

from collections import Counter

import pytest

from vcap_jax.human_eval.embedded import read_truth, write_embedded_study
from vcap_jax.human_eval.protocol import Step2
from vcap_jax.human_eval.study import Settings, read_study
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import caption_claims, scene_facts


def make(folder, **more):
    return write_embedded_study(folder, images=6, videos=2, settings=Settings(), **more)


def test_the_folder_is_a_sound_study_with_a_right_verdict_for_everything(tmp_path):
    made = make(tmp_path)
    study = read_study(tmp_path)
    assert len(study.items) == 8
    assert {item.captions[0].reward is not None for item in study.items.values()} == {True}
    assert read_truth(tmp_path) == made.truth
    assert set(made.truth) == {one.prop_id for rows in study.propositions.values() for one in rows}
    spans = [one.ref_span is not None for one in made.propositions]
    assert sum(spans) == len(spans)  # the other caption says each of them somewhere


def test_right_verdicts_follow_from_the_facts(tmp_path):
    made = make(tmp_path, overlooked=0.0)
    labels = Counter(verdict.label for verdict in made.truth.values())
    assert set(labels) == {"1. consistent, 2. holding", "2. inconsistent"}
    # Who says everything and nothing else omits nothing and errs nowhere; whatever is found against it is not so.
    against = [made.truth[one.prop_id] for one in made.propositions if one.model == "thorough"]
    assert not any(verdict.confirmed for verdict in against)
    confirmed = Counter(one.model for one in made.propositions if made.truth[one.prop_id].confirmed)
    assert confirmed["brief"] > confirmed["careful"] > confirmed["thorough"]


@pytest.mark.slow
def test_a_claim_is_overlooked_with_the_chance_that_is_named_however_many_captions_make_it(tmp_path):
    made = write_embedded_study(tmp_path, images=30, settings=Settings(), overlooked=0.15)
    shared = 0
    for index, item in enumerate(made.items):
        scene = sample_scene("image", 0, index, "human-eval")
        facts = scene_facts(scene)
        right = {
            caption.model: {one for one in caption_claims(scene, caption.text) if one in facts.items()}
            for caption in item.captions
        }
        for model, own in right.items():
            shared += len(own & set().union(*(of for other, of in right.items() if other != model)))
    objected = sum(verdict.step2 is Step2.NOT_HOLDING for verdict in made.truth.values())
    assert shared > 2000
    # Four standard deviations of so many draws.
    assert objected / shared == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / shared) ** 0.5)


def test_statements_stand_alone(tmp_path):
    texts = [one.text for one in make(tmp_path).propositions]
    assert [text for text in texts if "of them" in text] == []
    assert [text for text in texts if "of the objects are" in text] != []


def test_the_same_arguments_give_the_same_files(tmp_path):
    make(tmp_path / "one")
    make(tmp_path / "two")
    for path in sorted((tmp_path / "one").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
