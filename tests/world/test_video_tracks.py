"""What stands in a quarter, before it is named."""

from __future__ import annotations

import numpy as np
import pytest

from vcap_jax.world.drawing import shape_mask
from vcap_jax.world.video_scenes import QUARTER
from vcap_jax.world.video_tracks import (
    Things,
    find_things,
    grounds,
    hue_contrast,
    quarters,
    shape_distances,
    size_of,
    texture_direction,
    whole,
)
from vcap_jax.world.vocabulary import COLOURS, SHAPES

GROUND = np.array((134.0, 136.0, 138.0), np.float32)


def seen(masks: list[np.ndarray], colour: str = "green", noise: float = 0.0) -> Things | None:
    """What is found where masks of a colour lie before a gray wall whose brightness varies."""
    rng = np.random.default_rng(0)
    delta = np.stack([mask[..., None] * (np.array(COLOURS[colour], np.float32) - GROUND) for mask in masks])
    texture = texture_direction(GROUND)
    delta += (noise * rng.normal(0, 1, delta.shape[:3])[..., None] * texture).astype(np.float32)
    return find_things(delta, hue_contrast(delta, delta @ texture), GROUND)


def test_quarters_are_in_reading_order_and_join_again() -> None:
    frames = np.arange(2 * 96 * 96, dtype=np.float32).reshape(2, 96, 96)
    cells = quarters(frames)
    assert np.array_equal(cells[1, 1], frames[1, :48, 48:])
    assert np.array_equal(cells[0, 2], frames[0, 48:, :48])
    assert np.array_equal(whole(cells), frames)


def test_the_ground_is_what_most_of_a_frame_shows() -> None:
    frames = np.tile(GROUND, (2, 96, 96, 1))
    frames[1, 10:50, 10:60] = COLOURS["red"]
    assert np.array_equal(grounds(frames), [GROUND, GROUND])


def test_brightness_alone_is_no_object() -> None:
    texture = texture_direction(GROUND)
    delta = 60 * shape_mask("circle", (24.0, 24.0), 26.0, 0.0, QUARTER)[None, ..., None] * texture
    assert find_things(delta, hue_contrast(delta, delta @ texture), GROUND) is None
    assert seen([np.zeros((QUARTER, QUARTER), np.float32)], noise=15.0) is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("extent", "size"), [(14.0, "small"), (17.0, "small"), (24.0, "large"), (28.0, "large")]
)
def test_shapes_are_told_in_any_size_and_place(shape: str, extent: float, size: str) -> None:
    empty = np.zeros((QUARTER, QUARTER), np.float32)
    masks = [empty, *(shape_mask(shape, (20.3 + step, 25.6), extent, 0.07, QUARTER) for step in (0, 3))]
    things = seen(masks, noise=12.0)
    assert things is not None
    assert things.frames.tolist() == [1, 2]
    distances = shape_distances(things)
    assert SHAPES[int(distances.argmin())] == shape
    # Clearly: any other shape is twice as far.
    assert np.sort(distances)[1] > 2 * max(distances.min(), 0.02)
    assert size_of(things, shape) == size
    assert things.centres[1] - things.centres[0] == pytest.approx([3, 0], abs=0.4)
    assert np.abs(things.colours - COLOURS["green"]).max() < 20
