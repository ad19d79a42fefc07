"""Patterns and marks of things as they are fitted."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vcap_jax.world.image_details import mark_is_hidden, see_mark, see_pattern
from vcap_jax.world.image_rendering import render_image
from vcap_jax.world.image_segments import Segments, segment
from vcap_jax.world.image_things import Thing, find_things
from vcap_jax.world.scenes import ImageObject, ImageScene
from vcap_jax.world.vocabulary import MARKS, PATTERNS, SHAPES


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
