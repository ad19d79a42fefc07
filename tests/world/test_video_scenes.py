"""Clips as they are drawn: what every sampled scene keeps."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from vcap_jax.world.scenes import Shot, VideoObject, VideoScene, scene_from_json, scene_to_json
from vcap_jax.world.video_facts import seen_frames, video_facts
from vcap_jax.world.video_scenes import (
    DIRECTIONS,
    FACTS,
    LEAST_SHOT,
    LEAST_WAY,
    QUARTER,
    VIDEO_EXTENTS,
    quarter_origin,
    sample_video_scene,
)
from vcap_jax.world.vocabulary import (
    BACKGROUNDS,
    CAMERAS,
    COLOURS,
    EVENTS,
    MOTIONS,
    SHAPES,
    SIZES,
    VIDEO_FRAMES,
    VIDEO_PLACES,
)


@pytest.fixture(scope="module")
def scenes() -> list[VideoScene]:
    return [sample_video_scene(3, index) for index in range(400)]


def things(scenes: list[VideoScene]) -> list[tuple[Shot, VideoObject]]:
    return [(shot, thing) for scene in scenes for shot in scene.shots for thing in shot.objects]


def test_a_scene_depends_on_seed_index_and_split_only() -> None:
    scene = sample_video_scene(3, 17, "train")
    assert sample_video_scene(3, 17, "train") == scene
    others = [sample_video_scene(*key) for key in ((4, 17, "train"), (3, 18, "train"), (3, 17, "held-out"))]
    assert all(other != scene for other in others)


def test_scenes_survive_json(scenes: list[VideoScene]) -> None:
    for scene in scenes[:50]:
        assert scene_from_json(json.loads(json.dumps(scene_to_json(scene)))) == scene


def test_shots_fill_the_clip_and_differ_from_the_one_before(scenes: list[VideoScene]) -> None:
    for scene in scenes:
        spans = [(shot.first, shot.last) for shot in scene.shots]
        assert (spans[0][0], spans[-1][1]) == (0, VIDEO_FRAMES)
        assert all(a[1] == b[0] for a, b in pairwise(spans))
        assert all(last - first >= LEAST_SHOT and first % 2 == last % 2 == 0 for first, last in spans)
        assert all(a.background != b.background for a, b in pairwise(scene.shots))
        assert all(len({thing.place for thing in shot.objects}) == len(shot.objects) for shot in scene.shots)
    assert {tuple(shot.first for shot in scene.shots) for scene in scenes} == {
        (0, 4), (0, 6), (0, 8), (0, 4, 8)
    }  # fmt: skip


def test_objects_stay_off_the_borders_of_their_quarters_while_they_are_seen(scenes: list[VideoScene]) -> None:
    for shot, thing in things(scenes):
        origin = np.array(quarter_origin(thing.place))
        for frame in seen_frames(shot, thing):
            centre = np.array(thing.start) + np.array(thing.step) * (frame - shot.first) - origin
            assert (centre - thing.extent / 2 > 1).all()
            assert (centre + thing.extent / 2 < QUARTER - 1).all()


def test_what_moves_is_seen_to_move(scenes: list[VideoScene]) -> None:
    for shot, thing in things(scenes):
        way = np.array(thing.step) * (len(seen_frames(shot, thing)) - 1)
        assert tuple(np.sign(way)) == DIRECTIONS[thing.motion]
        assert np.abs(way).max() >= LEAST_WAY - 0.01 or thing.motion == "still"


def test_events_happen_at_even_frames_inside_their_shots(scenes: list[VideoScene]) -> None:
    for shot, thing in things(scenes):
        assert (thing.event is None) == (thing.at is None)
        assert (thing.event == "changes") == (thing.into is not None)
        assert thing.into != thing.colour
        if thing.at is not None:
            assert shot.first < thing.at < shot.last
            assert thing.at % 2 == 0
    acting = [
        sum(thing.event is not None for thing in shot.objects) for scene in scenes for shot in scene.shots
    ]
    assert max(acting) == 2


def test_every_value_is_drawn_about_as_often_as_its_rivals(scenes: list[VideoScene]) -> None:
    shots = [shot for scene in scenes for shot in scene.shots]
    objects = [thing for _, thing in things(scenes)]
    drawn = {
        SHAPES: [thing.shape for thing in objects],
        tuple(COLOURS): [thing.colour for thing in objects],
        SIZES: [thing.size for thing in objects],
        MOTIONS: [thing.motion for thing in objects],
        EVENTS: [thing.event for thing in objects if thing.event],
        VIDEO_PLACES: [thing.place for thing in objects],
        tuple(BACKGROUNDS): [shot.background for shot in shots],
        CAMERAS: [shot.camera for shot in shots],
    }
    for values, found in drawn.items():
        counts = Counter(found)
        assert set(counts) == set(values)
        assert max(counts.values()) < 1.4 * min(counts.values())
    assert 0.35 < sum(thing.event is not None for thing in objects) / len(objects) < 0.42
    for thing in objects:
        assert VIDEO_EXTENTS[thing.size][0] <= thing.extent <= VIDEO_EXTENTS[thing.size][1]


def test_a_clip_has_twenty_five_to_fifty_facts(scenes: list[VideoScene]) -> None:
    counts = [len(video_facts(scene)) for scene in scenes]
    assert min(counts) >= FACTS[0]
    assert max(counts) <= FACTS[1]
    assert 32 < np.mean(counts) < 35
