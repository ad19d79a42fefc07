"""Facts by geometry, on scenes made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vcap_jax.world.image_facts import facts_and_undecided, image_facts, image_undecided, layers
from vcap_jax.world.scenes import ImageObject, ImageScene


def thing(place: str, centre: tuple[float, float], **attributes: str | float | None) -> ImageObject:
    """A large red square, unless said otherwise."""
    plain = ImageObject(
        place=place,
        shape="square",
        colour="red",
        size="large",
        pattern=None,
        direction=None,
        mark=None,
        inside=None,
        centre=centre,
        extent=36.0,
        tilt=0.0,
    )
    return replace(plain, **attributes)


def scene(*objects: ImageObject) -> ImageScene:
    return ImageScene(objects=objects, background="white", light="left", render_seed=0)


def test_everything_that_there_is_to_see_is_a_fact() -> None:
    picture = scene(
        thing("top left", (22.0, 22.0), mark="8"),
        thing("top center", (64.0, 34.0), shape="ring", colour="blue", inside="pink"),
        thing("top right", (106.0, 30.0), shape="arrow", direction="left", size="small", extent=19.0),
        thing("middle left", (33.0, 64.0), shape="ring", pattern="striped"),
    )
    assert image_facts(picture) == {
        ("top left", "shape"): "square",
        ("top left", "colour"): "red",
        ("top left", "size"): "large",
        ("top left", "mark"): "8",
        ("top center", "shape"): "ring",
        ("top center", "colour"): "blue",
        ("top center", "size"): "large",
        ("top center", "inside"): "pink",
        ("top right", "shape"): "arrow",
        ("top right", "colour"): "red",
        ("top right", "size"): "small",
        ("top right", "direction"): "left",
        ("middle left", "shape"): "ring",
        ("middle left", "colour"): "red",
        ("middle left", "size"): "large",
        ("middle left", "pattern"): "striped",
        ("top left", "top center", "level"): "higher",
        ("top left", "middle left", "side"): "further left",
        ("scene", "ring", "count"): "two",
        ("scene", "objects"): "four",
        ("scene", "background"): "white",
        ("scene", "light"): "left",
    }
    assert image_undecided(picture) == frozenset()


@pytest.mark.parametrize(
    ("drop", "verdict"),
    [(6.0, None), (8.0, "undecided"), (10.0, "higher"), (-10.0, "lower"), (-6.0, None), (-9.0, "undecided")],
)
def test_a_level_is_a_fact_a_question_or_nothing(drop: float, verdict: str | None) -> None:
    slot = ("middle left", "middle center", "level")
    facts, undecided = facts_and_undecided(
        scene(thing("middle left", (22.0, 64.0)), thing("middle center", (64.0, 64.0 + drop)))
    )
    assert facts.get(slot) == (None if verdict == "undecided" else verdict)
    assert (slot in undecided) == (verdict == "undecided")


@pytest.mark.parametrize(
    ("overlap", "fact", "open_question"),
    [(-1.0, False, False), (1.3, False, True), (4.0, True, False), (10.0, True, False)],
)
def test_who_hides_enough_covers(overlap: float, fact: bool, open_question: bool) -> None:
    # Squares of 33.12 pixels, of which strips are hidden.
    distance = 0.92 * 36 - overlap
    facts, undecided = facts_and_undecided(
        scene(
            thing("middle left", (30.0, 60.0)), thing("middle center", (30.0 + distance, 60.0), colour="blue")
        )
    )
    assert (facts.get(("middle center", "middle left", "overlap")) == "covers") == fact
    assert ("middle left", "middle center", "overlap") not in facts
    slots = {("middle left", "middle center", "overlap"), ("middle center", "middle left", "overlap")}
    assert (slots <= undecided) == open_question


def test_a_third_in_front_hides_in_place_of_the_second() -> None:
    picture = scene(
        thing("middle left", (30.0, 64.0)),
        thing("middle center", (50.0, 64.0), colour="blue"),
        thing("middle right", (46.0, 64.0), colour="green"),
    )
    seen = layers(picture)
    assert seen.hidden[0].tolist() == pytest.approx([0, 0, 1 - 16 / 33], abs=0.03)
    assert np.allclose(seen.hidden_share, seen.hidden.sum(axis=1))
    assert set(np.unique(seen.front)) == {-1, 0, 1, 2}


def test_of_what_is_mostly_hidden_less_can_be_told() -> None:
    back = thing("middle left", (36.0, 64.0), shape="arrow", direction="up", size="small", extent=20.0)
    neighbours = (thing("top left", (20.0, 20.0)), thing("bottom left", (20.0, 100.0)))
    half = scene(*neighbours, back, thing("middle center", (53.0, 64.0), colour="blue"))
    facts, undecided = facts_and_undecided(half)
    assert facts["middle left", "colour"] == "red"
    assert {("middle left", "shape"), ("middle left", "direction"), ("scene", "square", "count")} <= undecided
    assert ("top left", "middle left", "side") in undecided
    assert not undecided & facts.keys()
    assert facts["scene", "objects"] == "four"
    nothing = scene(back, thing("middle center", (36.0, 64.0), colour="blue"))
    assert {("middle left", "colour"), ("scene", "objects")} <= image_undecided(nothing)


def test_a_hidden_mark_cannot_be_told_nor_a_hidden_dot() -> None:
    for cover, hidden in ((56.0, False), (44.0, True)):
        picture = scene(
            thing("middle left", (30.0, 64.0), mark="4"),
            thing("middle center", (cover, 64.0), colour="blue"),
        )
        assert (("middle left", "mark") in image_undecided(picture)) == hidden
        assert (("middle left", "mark") in image_facts(picture)) != hidden
    ring = thing("middle left", (30.0, 64.0), shape="ring", inside="green")
    picture = scene(ring, thing("middle center", (50.0, 64.0), colour="blue"))
    assert ("middle left", "inside") in image_undecided(picture)
    assert ("middle left", "inside") in image_facts(scene(ring))
