"""What captions tell is counted, scene by scene."""

from __future__ import annotations

import pytest

from tests.recipes.teaching.prompter import scenery
from vcap_jax.recipes.teaching.saying import Said, told
from vcap_jax.world.facts import scene_facts


def test_captions_are_counted_with_their_scenes() -> None:
    shown = scenery("image", 2)
    facts = [scene_facts(scene) for scene in shown.scenes]
    colours = [known["scene", "background"] for known in facts]
    wrong = "white" if colours[1] != "white" else "black"
    said = [
        Said(0, f"The background is {colours[0]}.", 6),
        Said(1, f"The background is {wrong}. There are nine objects.", 11),
    ]
    found = told(shown, said)
    right = 1 + (facts[1]["scene", "objects"] == "nine")
    assert found["mean_tokens"] == 8.5
    assert found["captions"] == 2
    assert found["coverage"] == pytest.approx(right / sum(map(len, facts)))
    assert found["false_share"] == pytest.approx(1 - right / 3)
    assert found["mention_rates"]["background"] == 1.0
    assert found["mention_rates"]["objects"] == 0.5
    assert found["mention_rates"]["light"] == 0.0
