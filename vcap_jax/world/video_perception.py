"""Reads facts out of a clip's pixels: the adjudicator's eyes for videos.

Shots begin where the background's colour jumps. In each, what stands in a quarter is followed from frame to frame. Its
shape is the likest of the outlines that are drawn, its motion the way of its centre; what happens to it is told by when
it is there and in which colour. A clip that is not of this world is read too: what looks like none of the shapes is an
object about which nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from scipy.ndimage import maximum_filter

from vcap_jax.world import vocabulary as words
from vcap_jax.world.scenes import VIDEO_EDGE
from vcap_jax.world.sight import Notes, Sight, brought_to_size
from vcap_jax.world.video_facts import earliest_event
from vcap_jax.world.video_rendering import PAN, ZOOM
from vcap_jax.world.video_tracks import (
    SURE_CONTRAST,
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
from vcap_jax.world.vocabulary import Slot

_CUT_CONTRAST = 24.0
"""RGB distance between the backgrounds of two frames of different shots."""
_LEAST_WAY = 1.5
"""Pixels that something covers while it is seen if it moves: the slowest covers 2 from a frame to the next, of which
compression may hide a little."""
_CHANGE = 55.0
"""RGB distance between an object's colours before and after it changes."""
_STRANGE = 0.30
"""Relative distance from the nearest outline above which a thing has no shape of this world."""
_OBJECT_COLOURS = np.array(list(words.COLOURS.values()), np.float32)
_BACKGROUND_COLOURS = np.array(list(words.BACKGROUNDS.values()), np.float32)
_MOST_STEPS = 3
"""Frames of the clip between two that are compared, at most: a longer pan would take one line of a lattice for the
next."""
_SEAM = 5
"""Pixels of the neighbourhood of an object that are not looked at: its edges do not move with the background."""
_CLEAR = 0.8
"""Error of the best answer about the camera, relative to the second best's, at which it is taken for true."""


def see_video(frames: Sequence[np.ndarray], times: Sequence[float]) -> Sight:
    """Shots and facts of frames as a video scene, or as a window of one, slots numbered by the shots seen.

    frames: uint8 [H, W, 3] each, of any size, at least one, in order of time. times: seconds of each frame in the whole
    clip, ascending. The last frame is taken to last as long as the frames usually do.

    Frames that begin later than a clip begins, or end before one ends, are a window. Unknown are then how many shots
    there are, the cuts that the window does not show, and, in a shot that may go on beyond it, what happens to an
    object, unless the window shows it, and where something happens first, unless it shows the shot's beginning. A
    quarter in which it shows nothing is empty.
    Raises ValueError for no frames, not as many times as frames, or a frame that is no picture.
    """
    if not len(frames) or len(frames) != len(times):
        raise ValueError(
            f"{len(frames)} frames and {len(times)} times: give one time for each of at least one frame"
        )
    pictures = np.stack([brought_to_size(frame, VIDEO_EDGE, "frame") for frame in frames]).astype(np.float32)
    cells, colours = quarters(pictures), grounds(pictures)
    jumps = np.sqrt(np.square(np.diff(colours, axis=0)).sum(axis=1)) > _CUT_CONTRAST
    starts = [0, *(np.flatnonzero(jumps) + 1).tolist()]
    spacing = float(np.median(np.diff(times))) if len(times) > 1 else 1 / words.VIDEO_FPS
    moments = _moments(times)
    limits = [*(moments[start] for start in starts), float(times[-1]) + spacing]
    half = 0.5 / words.VIDEO_FPS
    from_start, to_end = limits[0] < half, limits[-1] > words.VIDEO_SECONDS - half

    notes = Notes()
    for shot, (first, last) in enumerate(pairwise([*starts, len(frames)])):
        begun, ended = shot > 0 or from_start, last < len(frames) or to_end
        seen = slice(first, last)
        _see_shot(notes, shot, cells[seen], colours[seen], times[seen], moments[seen], begun, ended)
    _see_cuts(notes, limits[1:-1], from_start, to_end)
    return notes.sight(pairwise(limits))


def _moments(times: Sequence[float]) -> list[float]:
    """When what a frame shows first happened: since the frame before, at the last time at which anything can happen in
    this world, or, if there is none, when the frame was taken."""
    known = [float(time) for time in words.TIMES]
    since = [max((time for time in known if a < time <= b), default=b) for a, b in pairwise(times)]
    return [float(times[0]), *map(float, since)]


def _see_cuts(notes: Notes, cuts: Sequence[float], from_start: bool, to_end: bool) -> None:
    """Notes the cuts that were seen; their numbers are known if the clip's beginning was."""
    if from_start:
        notes.facts |= {slot: f"{cut:.1f}" for slot, cut in zip(words.CUTS, cuts, strict=False)}
    if not (from_start and to_end):
        notes.unknown |= {words.SHOTS, *(slot for slot in words.CUTS if slot not in notes.facts)}
    elif 1 + len(cuts) < len(words.NUMBERS) and words.NUMBERS[1 + len(cuts)] in words.VALUES["shots"]:
        notes.facts[words.SHOTS] = words.NUMBERS[1 + len(cuts)]


def _see_shot(
    notes: Notes,
    shot: int,
    cells: np.ndarray,
    colours: np.ndarray,
    times: Sequence[float],
    moments: Sequence[float],
    begun: bool,
    ended: bool,
) -> None:
    """Notes what the frames of a shot show; ``begun``, ``ended``: its first frame is seen, and its last."""
    complete = begun and ended
    ground = np.median(colours, axis=0)
    texture = texture_direction(ground)
    delta = cells - ground
    along = delta @ texture
    contrast = hue_contrast(delta, along)
    notes.facts[shot, "scene", "background"] = _nearest(ground, _BACKGROUND_COLOURS, tuple(words.BACKGROUNDS))
    camera = see_camera(whole(along), whole(contrast) > SURE_CONTRAST, times)
    notes.add((shot, "scene", "camera"), camera)
    happened: dict[str, str] = {}
    for quarter, place in enumerate(words.VIDEO_PLACES):
        things = find_things(delta[:, quarter], contrast[:, quarter], ground)
        if things is None:
            continue
        notes.prominence[shot, place] = float(things.areas.mean())
        _see_object(notes, (shot, place), things, moments, complete)
        if (shot, place, "time") in notes.facts:
            happened[place] = notes.facts[shot, place, "time"]
    first = earliest_event(happened)
    if begun and first is not None:
        notes.facts[shot, "scene", "first"] = first
    elif not complete:
        notes.unknown.add((shot, "scene", "first"))


def _see_object(notes: Notes, owner: Slot, things: Things, moments: Sequence[float], complete: bool) -> None:
    """Notes what an object is, how it moves and what happens to it."""
    distances = shape_distances(things)
    if distances.min() > _STRANGE:
        notes.unknown |= {(*owner, kind) for kind in (*words.VIDEO_ATTRIBUTES, "motion", *words.HAPPENINGS)}
        return
    shape = words.SHAPES[int(distances.argmin())]
    event, frame = _event(things, len(moments))
    before = things.colours[things.frames < frame] if event == "changes" else things.colours
    notes.facts[*owner, "shape"] = shape
    notes.facts[*owner, "colour"] = _nearest(before.mean(axis=0), _OBJECT_COLOURS, tuple(words.COLOURS))
    notes.facts[*owner, "size"] = size_of(things, shape)
    notes.add((*owner, "motion"), _motion(things))
    if event is not None:
        notes.facts[*owner, "event"] = event
        notes.facts[*owner, "time"] = f"{moments[frame]:.1f}"
        if event == "changes":
            after = things.colours[things.frames >= frame].mean(axis=0)
            notes.facts[*owner, "into"] = _nearest(after, _OBJECT_COLOURS, tuple(words.COLOURS))
    elif not complete:
        notes.unknown |= {(*owner, kind) for kind in words.HAPPENINGS}


def _nearest(colour: np.ndarray, palette: np.ndarray, names: Sequence[str]) -> str:
    return names[int(np.square(palette - colour).sum(axis=1).argmin())]


def _motion(things: Things) -> str | None:
    """Where something moves (y downwards), by the straight line nearest to its centres; None for a single one."""
    if len(things.frames) < 2:
        return None
    since = things.frames - things.frames.mean()
    dx, dy = since @ things.centres / (since @ since) * float(things.frames[-1] - things.frames[0])
    if max(abs(dx), abs(dy)) < _LEAST_WAY:
        return "still"
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def _event(things: Things, count: int) -> tuple[str | None, int]:
    """What happens to something in a shot of ``count`` frames, and in which frame; None and 0 for nothing.

    It is there from a frame on, or until one, or from one on in another colour.
    """
    first, last = int(things.frames[0]), int(things.frames[-1]) + 1
    if first > 0 and last == count:
        return "appears", first
    if first == 0 and last < count:
        return "disappears", last
    splits = [
        (float(np.square(things.colours[:k] - before).sum() + np.square(things.colours[k:] - after).sum()), k)
        for k in range(1, len(things.frames))
        for before, after in [(things.colours[:k].mean(axis=0), things.colours[k:].mean(axis=0))]
    ]
    if not splits:
        return None, 0
    _, k = min(splits)
    jump = things.colours[k:].mean(axis=0) - things.colours[:k].mean(axis=0)
    if float(np.sqrt(np.square(jump).sum())) < _CHANGE:
        return None, 0
    return "changes", int(things.frames[k])


def see_camera(brightness: np.ndarray, objects: np.ndarray, times: Sequence[float]) -> str | None:
    """What the camera does in the frames of a shot, told by the background alone: each answer foretells the next frame,
    and the best one wins.

    brightness: of the pixels, float32 [T, 96, 96]. objects: bool [T, 96, 96], true where something stands in front of
    the background. times: seconds of the frames. None where it cannot be told: a single frame, frames too far from each
    other, a background without texture.
    """
    errors = np.zeros(len(words.CAMERAS))
    free = ~maximum_filter(objects, (1, _SEAM, _SEAM))
    for k in range(len(brightness) - 1):
        steps = max(round((times[k + 1] - times[k]) * words.VIDEO_FPS), 1)
        if steps > _MOST_STEPS:
            continue
        errors += [
            _foretold(brightness[k], free[k], brightness[k + 1], free[k + 1], camera, steps)
            for camera in words.CAMERAS
        ]
    best, second = np.argsort(errors)[:2]
    return words.CAMERAS[best] if errors[best] < _CLEAR * errors[second] else None


def _foretold(
    before: np.ndarray,
    free_before: np.ndarray,
    after: np.ndarray,
    free_after: np.ndarray,
    camera: str,
    steps: int,
) -> float:
    """Mean square error with which one frame foretells another, where both show the background."""
    source, inside = _sources(camera, steps)
    usable = inside & free_after.ravel() & free_before.ravel()[source]
    if not usable.any():
        return np.inf
    error = (after.ravel() - before.ravel()[source])[usable]
    return float(np.square(error).mean())


@cache
def _sources(camera: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """For each pixel of a frame, flat, the nearest pixel of the frame ``steps`` before in which the camera saw the same
    point of the background, and whether that lies in the picture."""
    middles = np.arange(VIDEO_EDGE) + 0.5
    x, y = np.meshgrid(middles, middles)
    if camera == "zooms in":
        x, y = (VIDEO_EDGE / 2 + (axis - VIDEO_EDGE / 2) / ZOOM**steps for axis in (x, y))
    else:
        x = x + {"still": 0.0, "pans left": -PAN, "pans right": PAN}[camera] * steps
    columns, rows = np.floor(x).astype(int).ravel(), np.floor(y).astype(int).ravel()
    inside = (columns >= 0) & (columns < VIDEO_EDGE)
    return rows * VIDEO_EDGE + np.clip(columns, 0, VIDEO_EDGE - 1), inside
