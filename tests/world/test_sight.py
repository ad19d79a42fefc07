from __future__ import annotations

import numpy as np

from vcap_jax.world.sight import Notes, brought_to_size


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


def test_a_larger_picture_is_looked_at_as_the_mean_of_its_pixels() -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    picture[:2, 1:] = 200
    np.testing.assert_array_equal(brought_to_size(picture, 2)[..., 0], [[100, 200], [0, 0]])
