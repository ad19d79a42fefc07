"""Figures of several policies, side by side."""

from __future__ import annotations

from vcap_jax.recipes.teaching.probing import table


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
