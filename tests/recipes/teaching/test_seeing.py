"""An answer is right if it is the true one word for word."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recipes.teaching.prompter import processor, pupil, scenery
from vcap_jax.recipes.teaching.corpus import Packer
from vcap_jax.recipes.teaching.seeing import asked, choices, preferring, seeing
from vcap_jax.world.captions import full_caption
from vcap_jax.world.dataset import sample_scene
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.scenes import Modality
from vcap_jax.world.vocabulary import VALUES


@pytest.mark.parametrize("modality", ["image", "video"])
def test_who_knows_all_answers_all_kinds(modality: Modality) -> None:
    shown = scenery(modality, 3)
    found = seeing(pupil(modality), modality, shown)
    kinds = {str(slot[-1]) for scene in shown.scenes for slot in scene_facts(scene)}
    assert found == dict.fromkeys(kinds | {"thing"}, 1.0)


def test_who_never_says_red_fails_where_red_is_the_answer() -> None:
    shown = scenery("image", 4)
    found = seeing(pupil("image", "red", " red"), "image", shown)
    lessons = [lesson for row, scene in enumerate(shown.scenes) for lesson in asked(scene, row)]
    for kind in ("colour", "thing", "shape"):
        own = [lesson for lesson in lessons if lesson.kind == kind]
        right = sum("red" not in lesson.answer.rstrip(".").split() for lesson in own)
        assert found[kind] == pytest.approx(right / len(own))
    assert found["shape"] == 1.0
    assert found["colour"] < 1.0


@pytest.mark.parametrize("modality", ["image", "video"])
def test_choices_stand_in_the_full_caption(modality: Modality) -> None:
    scene = sample_scene(modality, 0, 0, "test")
    tokens, found = choices(scene, Packer(processor()), 5)
    text = processor().tokenizer.decode(tokens, skip_special_tokens=True)
    assert text == full_caption(scene, np.random.default_rng(5))
    facts = {slot: value for slot, value in scene_facts(scene).items() if len(VALUES[str(slot[-1])]) > 1}
    assert [choice.kind for choice in found] == [slot[-1] for slot in facts]
    for choice in found:
        assert len(choice.partings) == len(VALUES[choice.kind]) - 1
        for place, true, other in choice.partings:
            assert tokens[place] == true != other


def test_who_knows_all_prefers_the_truth() -> None:
    found = preferring(pupil("image"), "image", scenery("image", 3))
    assert set(found.values()) == {1.0}


def test_who_never_says_red_prefers_another_colour() -> None:
    """Where the truth is red, red and the others are equally improbable: then it is not preferred."""
    shown = scenery("image", 4)
    found = preferring(pupil("image", " red"), "image", shown)
    colours = [v for scene in shown.scenes for slot, v in scene_facts(scene).items() if slot[-1] == "colour"]
    assert found["colour"] == pytest.approx(1 - colours.count("red") / len(colours))
    assert found["shape"] == 1.0
