"""What a video scene shows: facts by its geometry, and what its pixels leave open."""

from __future__ import annotations

from vcap_jax.world.scenes import Shot, VideoObject, VideoScene
from vcap_jax.world.vocabulary import CUTS, NUMBERS, SHOTS, VIDEO_ATTRIBUTES, VIDEO_FPS, Facts, Slot

LEAST_FRAMES = 2
"""Frames that it takes to tell what moves: an object, or the camera."""


def seen_frames(shot: Shot, thing: VideoObject) -> range:
    """The frames of the clip in which an object of the shot is seen."""
    if thing.event == "appears" and thing.at is not None:
        return range(thing.at, shot.last)
    if thing.event == "disappears" and thing.at is not None:
        return range(shot.first, thing.at)
    return range(shot.first, shot.last)


def earliest_event(times: dict[str, str]) -> str | None:
    """Where something happens first; None unless a single event comes before all others, of which there is one at
    least. times: seconds with one decimal, by place."""
    by_time = sorted(times, key=lambda place: float(times[place]))
    if len(by_time) < 2 or times[by_time[0]] == times[by_time[1]]:
        return None
    return by_time[0]


def seconds(frame: int) -> str:
    """The time of a frame as captions tell it."""
    return f"{frame / VIDEO_FPS:.1f}"


def video_facts(scene: VideoScene) -> Facts:
    """All facts of a clip; the slots are those of ``vocabulary``, without the ones of ``video_undecided``."""
    facts: Facts = {}
    for index, shot in enumerate(scene.shots):
        facts[index, "scene", "background"] = shot.background
        facts[index, "scene", "camera"] = shot.camera
        times: dict[str, str] = {}
        for thing in shot.objects:
            for kind in (*VIDEO_ATTRIBUTES, "motion"):
                facts[index, thing.place, kind] = getattr(thing, kind)
            if thing.event is not None and thing.at is not None:
                facts[index, thing.place, "event"] = thing.event
                facts[index, thing.place, "time"] = times[thing.place] = seconds(thing.at)
                if thing.into is not None:
                    facts[index, thing.place, "into"] = thing.into
        first = earliest_event(times)
        if first is not None:
            facts[index, "scene", "first"] = first
    facts[SHOTS] = NUMBERS[len(scene.shots)]
    for slot, shot in zip(CUTS, scene.shots[1:], strict=False):
        facts[slot] = seconds(shot.first)
    undecided = video_undecided(scene)
    return {slot: value for slot, value in facts.items() if slot not in undecided}


def video_undecided(scene: VideoScene) -> frozenset[Slot]:
    """Slots about which the pixels decide nothing: what moves where fewer than ``LEAST_FRAMES`` frames show it.

    A sampled scene has none: its shots are long enough, and so is what is seen of each object.
    """
    undecided: set[Slot] = set()
    for index, shot in enumerate(scene.shots):
        if shot.last - shot.first < LEAST_FRAMES:
            undecided.add((index, "scene", "camera"))
        undecided |= {
            (index, thing.place, "motion")
            for thing in shot.objects
            if len(seen_frames(shot, thing)) < LEAST_FRAMES
        }
    return frozenset(undecided)
