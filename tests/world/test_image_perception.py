"""Facts of pictures out of their pixels."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from vcap_jax.world.image_facts import facts_and_undecided
from vcap_jax.world.image_perception import mark_is_hidden, see_image, see_mark, see_pattern
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_scenes import sample_image_scene
from vcap_jax.world.image_segments import Segments, segment
from vcap_jax.world.image_things import Thing, find_things
from vcap_jax.world.scenes import ImageObject, ImageScene
from vcap_jax.world.vocabulary import MARKS, PATTERNS, SHAPES, Facts, Slot

SQUARE = ImageObject(
    place="middle center",
    shape="square",
    colour="red",
    size="large",
    pattern=None,
    direction=None,
    mark=None,
    inside=None,
    centre=(64.0, 64.0),
    extent=36.0,
    tilt=0.0,
)


def jpeg(picture: np.ndarray, quality: int) -> np.ndarray:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream).convert("RGB"))


def errors(picture: np.ndarray, truth: Facts, undecided: frozenset[Slot]) -> int:
    """Facts that were missed or misread, and what was seen that there is not."""
    facts = see_image(picture).facts
    missed = sum(facts.get(slot) != value for slot, value in truth.items())
    return missed + sum(slot not in truth and slot not in undecided for slot in facts)


@pytest.mark.parametrize("quality", [*(pytest.param(q, marks=pytest.mark.slow) for q in (None, 95)), 90])
def test_pictures_are_read_almost_without_error(quality: int | None) -> None:
    total = wrong = 0
    for index in range(40):
        scene = sample_image_scene(21, index)
        truth, undecided = facts_and_undecided(scene)
        picture = render_image(scene)
        wrong += errors(picture if quality is None else jpeg(picture, quality), truth, undecided)
        total += len(truth)
    assert wrong <= 0.005 * total


def test_an_enlarged_picture_is_read_too() -> None:
    total = wrong = 0
    for index in range(20):
        scene = sample_image_scene(22, index)
        large = Image.fromarray(render_image(scene)).resize((384, 320), Image.Resampling.BICUBIC)
        truth, undecided = facts_and_undecided(scene)
        wrong += errors(np.asarray(large), truth, undecided)
        total += len(truth)
    assert wrong <= 0.01 * total


def test_an_empty_picture_shows_nothing_but_its_background() -> None:
    scene = ImageScene(objects=(), background="gray", light="above", render_seed=3)
    sight = see_image(render_image(scene))
    assert sight.facts == {
        ("scene", "background"): "gray",
        ("scene", "light"): "above",
        ("scene", "objects"): "zero",
    }
    assert sight.prominence == {}
    assert sight.verdict(("top left", "shape"), "circle") is False


def test_a_hidden_mark_is_unknown_and_a_missing_one_is_not() -> None:
    square = replace(SQUARE, centre=(74.0, 64.0), extent=38.0)
    marked = replace(square, mark="8")
    cover = replace(
        SQUARE, place="middle right", colour="yellow", centre=(101.0, 64.0), shape="circle", extent=33.0
    )
    scene = ImageScene(objects=(marked, cover), background="white", light="left", render_seed=0)
    sight = see_image(render_image(replace(scene, objects=(marked, replace(cover, centre=(93.0, 64.0))))))
    assert sight.verdict(("middle center", "mark"), "8") is None
    assert sight.verdict(("middle center", "shape"), "square") is True
    assert sight.verdict(("middle right", "middle center", "overlap"), "covers") is True
    plain = see_image(render_image(replace(scene, objects=(square, cover))))
    assert plain.verdict(("middle center", "mark"), "8") is False


def test_the_shape_of_what_is_mostly_hidden_is_unknown() -> None:
    cover = replace(SQUARE, place="middle right", colour="yellow", centre=(86.0, 66.0), extent=38.0)
    ring = replace(SQUARE, shape="circle", centre=(66.0, 62.0), extent=33.0)
    scene = ImageScene(objects=(ring, cover), background="white", light="left", render_seed=0)
    truth, undecided = facts_and_undecided(scene)
    sight = see_image(render_image(scene))
    assert ("middle center", "shape") in undecided
    assert sight.verdict(("middle center", "shape"), "circle") is None
    assert sight.verdict(("scene", "square", "count"), "two") is None
    assert sight.verdict(("middle center", "colour"), "red") is True
    assert sight.verdict(("scene", "objects"), truth["scene", "objects"]) is True


@pytest.mark.parametrize("shape", [(1, 1), (5, 400), (128, 128), (64, 64), (719, 353)])
def test_any_picture_is_read_without_complaint(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (*shape, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)).resize(shape[::-1]))
    for picture in (noise, smooth, np.zeros_like(noise), np.full_like(noise, 255)):
        assert see_image(picture).facts["scene", "background"]


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        see_image(np.zeros((8, 8, 3)))


def seen(
    shape: str, colour: str, background: str, pattern: str | None, mark: str | None
) -> tuple[Thing, Segments]:
    """A large object alone in a picture, after JPEG."""
    item = ImageObject(
        place="middle center",
        shape=shape,
        colour=colour,
        size="large",
        pattern=pattern,
        direction=None,
        mark=mark,
        inside=None,
        centre=(63.6, 64.3),
        extent=34.6,
        tilt=0.05,
    )
    scene = ImageScene(objects=(item,), background=background, light="above", render_seed=4)
    stream = io.BytesIO()
    Image.fromarray(render_image(scene)).save(stream, "JPEG", quality=90)
    segments = segment(np.asarray(Image.open(stream).convert("RGB")))
    (thing,) = find_things(segments)
    return thing, segments


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pattern", [None, *PATTERNS])
@pytest.mark.parametrize(
    ("colour", "background"), [("yellow", "navy"), ("blue", "white"), ("pink", "gray"), ("red", "brown")]
)
def test_patterns_are_told_and_edges_are_none(
    shape: str, pattern: str | None, colour: str, background: str
) -> None:
    assert see_pattern(*seen(shape, colour, background, pattern, None)) == pattern


@pytest.mark.parametrize("shape", ["circle", "square", "triangle"])
@pytest.mark.parametrize("mark", [None, *MARKS])
@pytest.mark.parametrize(("colour", "background"), [("yellow", "black"), ("purple", "white")])
def test_marks_are_told_and_are_no_pattern(
    shape: str, mark: str | None, colour: str, background: str
) -> None:
    thing, segments = seen(shape, colour, background, None, mark)
    assert see_mark(thing, segments) == mark
    assert see_pattern(thing, segments) is None
    assert not mark_is_hidden(thing, segments)
