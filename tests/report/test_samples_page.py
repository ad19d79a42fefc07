"""Which samples a page shows where there are more than it can."""

from __future__ import annotations

from vcap_jax.report.samples_page import most_telling


def test_of_many_samples_the_largest_losses_and_gains_are_shown() -> None:
    gains: dict[str, float | None] = {f"s{i}": float(i) for i in range(-50, 51)}
    gains["masked"] = None
    chosen = most_telling(gains, 10)
    assert chosen == ["s-50", "s-49", "s-48", "s-47", "s-46", "s46", "s47", "s48", "s49", "s50"]
    few = {"a": 0.5, "masked": None, "b": -0.5, "c": 0.0}
    assert most_telling(few, 10) == ["b", "c", "a", "masked"]
