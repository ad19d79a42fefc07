"""Figures of several policies, side by side."""

from __future__ import annotations

import pytest

from tests.recipes.teaching.prompter import scenery
from vcap_jax.recipes.teaching.probing import Said, table, told
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


def row(sees: dict[str, float], coverage: float) -> dict:
    says = {
        "coverage": coverage, "false_share": 0.1, "mean_tokens": 31.25, "mean_stated": 0.3, "largest_stated": 0.5,
        "mention_rates": {"light": 0.05},
    }  # fmt: skip
    return {"sees": sees, "prefers": {"shape": 1.0}, "greedy": says, "sampled": says}


def test_each_policy_has_a_column_and_each_figure_a_row() -> None:
    said = row({}, 0.3)["sampled"]
    found = {"start": row({"shape": 0.5}, 0.25), "trained": row({"shape": 0.75, "mark": 0.1}, 0.9)}
    lines = table({"taught": {"sampled": said}} | found)
    cells = {line.split("  ")[0]: line.split() for line in lines.splitlines()}
    assert lines.splitlines()[0].split() == ["taught", "start", "trained"]
    assert cells["sees: shape"][-2:] == ["50.0%", "75.0%"]
    assert cells["sees: mark"][-2:] == ["-", "10.0%"]
    assert cells["greedy: coverage"][-3:] == ["-", "25.0%", "90.0%"]
    assert cells["sampled: coverage"][-3:] == ["30.0%", "25.0%", "90.0%"]
    assert cells["sampled: mean_tokens"][-2:] == ["31.2", "31.2"]
    assert cells["sampled, mentions: light"][-2:] == ["5.0%", "5.0%"]
