from __future__ import annotations

from vcap_jax.world.sight import Notes


def test_what_is_unknown_is_no_fact() -> None:
    notes = Notes(facts={("a", "shape"): "ring"})
    notes.add(("a", "mark"), None)
    notes.add(("a", "colour"), "red")
    notes.add(("a", "shape"), None)
    sight = notes.sight([(0.0, 2.0)])
    assert sight.facts == {("a", "colour"): "red"}
    assert sight.unknown == {("a", "mark"), ("a", "shape")}
    assert sight.shots == ((0.0, 2.0),)
    assert sight.verdict(("a", "colour"), "red") is True
    assert sight.verdict(("a", "shape"), "ring") is None
    assert sight.verdict(("a", "size"), "small") is False
