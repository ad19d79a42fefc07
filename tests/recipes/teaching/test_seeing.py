"""An answer is right if it is the true one word for word."""

from __future__ import annotations

import pytest

from tests.recipes.teaching.prompter import pupil, scenery
from vcap_jax.recipes.teaching.seeing import asked, seeing
from vcap_jax.world.facts import scene_facts
from vcap_jax.world.scenes import Modality


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
