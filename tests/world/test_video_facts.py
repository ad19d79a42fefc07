"""Facts of clips."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vcap_jax.world.scenes import Shot, VideoObject, VideoScene
from vcap_jax.world.video_facts import earliest_event, seen_frames, video_facts, video_undecided
from vcap_jax.world.video_scenes import sample_video_scene
from vcap_jax.world.vocabulary import VALUES

STILL = VideoObject(
    place="top left",
    shape="star",
    colour="red",
    size="small",
    motion="still",
    event=None,
    at=None,
    into=None,
    start=(24.0, 24.0),
    step=(0.0, 0.0),
    extent=15.0,
    tilt=0.0,
)
LEAVES = replace(STILL, place="top right", motion="down", step=(0.0, 3.0), event="disappears", at=2)
TURNS = replace(STILL, place="bottom left", event="changes", at=6, into="blue")


def clip(*objects: VideoObject) -> VideoScene:
    """Two shots, the first of eight frames with these objects."""
    shots = (
        Shot(first=0, last=8, background="navy", camera="zooms in", objects=objects),
        Shot(first=8, last=12, background="white", camera="still", objects=(STILL,)),
    )
    return VideoScene(shots=shots, render_seed=0)


def test_a_clip_shows_these_facts_and_no_others() -> None:
    assert video_facts(clip(LEAVES, TURNS)) == {
        (0, "scene", "background"): "navy",
        (0, "scene", "camera"): "zooms in",
        (0, "scene", "first"): "top right",
        (0, "top right", "shape"): "star",
        (0, "top right", "colour"): "red",
        (0, "top right", "size"): "small",
        (0, "top right", "motion"): "down",
        (0, "top right", "event"): "disappears",
        (0, "top right", "time"): "1.0",
        (0, "bottom left", "shape"): "star",
        (0, "bottom left", "colour"): "red",
        (0, "bottom left", "size"): "small",
        (0, "bottom left", "motion"): "still",
        (0, "bottom left", "event"): "changes",
        (0, "bottom left", "time"): "3.0",
        (0, "bottom left", "into"): "blue",
        (1, "scene", "background"): "white",
        (1, "scene", "camera"): "still",
        (1, "top left", "shape"): "star",
        (1, "top left", "colour"): "red",
        (1, "top left", "size"): "small",
        (1, "top left", "motion"): "still",
        ("video", "shots"): "two",
        ("video", "cut 1"): "4.0",
    }


def test_of_three_shots_both_cuts_are_facts() -> None:
    spans = [(0, 4), (4, 8), (8, 12)]
    shots = tuple(
        Shot(first=first, last=last, background="gray", camera="still", objects=()) for first, last in spans
    )
    facts = video_facts(VideoScene(shots=shots, render_seed=0))
    assert facts["video", "shots"] == "three"
    assert (facts["video", "cut 1"], facts["video", "cut 2"]) == ("2.0", "4.0")


@pytest.mark.parametrize(
    ("times", "first"),
    [
        ({}, None),
        ({"top left": "1.0"}, None),
        ({"top left": "2.0", "top right": "2.0"}, None),
        ({"top left": "2.0", "top right": "1.0"}, "top right"),
        # Of three events the earliest counts where it is alone; as numbers, not as texts.
        ({"top left": "10.0", "top right": "10.0", "bottom left": "9.0"}, "bottom left"),
        ({"top left": "1.0", "top right": "1.0", "bottom left": "3.0"}, None),
    ],
)
def test_one_event_is_first_or_none(times: dict[str, str], first: str | None) -> None:
    assert earliest_event(times) == first


def test_objects_are_seen_from_their_appearance_until_they_disappear() -> None:
    shot = clip().shots[0]
    assert seen_frames(shot, STILL) == range(8)
    assert seen_frames(shot, LEAVES) == range(2)
    assert seen_frames(shot, replace(LEAVES, event="appears")) == range(2, 8)
    assert seen_frames(shot, TURNS) == range(8)


def test_what_one_frame_shows_does_not_tell_what_moves() -> None:
    once = clip(replace(LEAVES, at=1))
    assert video_undecided(once) == {(0, "top right", "motion")}
    assert (0, "top right", "motion") not in video_facts(once)
    short = Shot(first=0, last=1, background="gray", camera="still", objects=())
    assert video_undecided(VideoScene(shots=(short,), render_seed=0)) == {(0, "scene", "camera")}
    assert not any(video_undecided(sample_video_scene(0, index)) for index in range(50))


def test_every_fact_has_a_value_of_its_kind() -> None:
    kinds = set()
    for index in range(300):
        for slot, value in video_facts(sample_video_scene(1, index)).items():
            assert value in VALUES[str(slot[-1])], slot
            kinds.add(slot[-1])
    assert kinds >= {"first", "into", "time", "event", "camera", "cut 2"}
