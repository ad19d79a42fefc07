"""One segment of a video: which claims of a description concern it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vcap_jax.world.sentences import Sentence, distinct
from vcap_jax.world.sight import Sight
from vcap_jax.world.video_grammar import parse_segment, parse_video, shot_of
from vcap_jax.world.vocabulary import HAPPENINGS, VIDEO_PLACES, Claim, Slot

LEAST_SHARE = 0.25
"""A shot that fills no more than this of a window is a sliver at its edge, about which nothing is asked."""

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of a video that is judged.

    shots: start and end in seconds of its shots (of the whole video's, where ``limits`` are given).
    limits: start and end in seconds; None where the shots begin and end with the window.
    slivers: indices of shots about which nothing is asked.
    things: (shot, place) of all objects that the frames show; None without frames.
    quiet: those of them to which nothing happens in the frames, but something may before or after.
    """

    shots: tuple[Span, ...]
    limits: Span | None = None
    slivers: frozenset[int] = frozenset()
    things: frozenset[Slot] | None = None
    quiet: frozenset[Slot] = frozenset()

    @property
    def span(self) -> Span:
        """Start and end in seconds."""
        if self.limits is not None:
            return self.limits
        return (self.shots[0][0], self.shots[-1][1]) if self.shots else (0.0, 0.0)


def window_of(sight: Sight) -> Window:
    """The window whose frames show ``sight``."""
    shots = sight.shots
    total = shots[-1][1] - shots[0][0]
    slivers = frozenset(k for k, (a, b) in enumerate(shots) if b - a <= LEAST_SHARE * total + 1e-6)
    things = frozenset(sight.prominence)
    return Window(
        shots=shots,
        slivers=slivers if len(slivers) < len(shots) else frozenset(),
        things=things,
        quiet=frozenset(thing for thing in things if (*thing, "event") in sight.unknown),
    )


def claims_in_window(text: str, window: Window) -> tuple[Claim, ...]:
    """The claims of a description that concern the window.

    A segment is about the shot that holds most of its part inside the window; one outside is out of range and
    says nothing here. Text without segments is about the longest shot. What a description says of an object holds for
    the window with what it says that happens to it before or after: see ``_then``.
    """
    told: dict[int, list[Claim]] = defaultdict(list)
    for shot, sentence in _sentences_in_window(text, window):
        told[shot] += sentence.claims
    return tuple(
        ((shot, *slot), value)
        for shot, claims in told.items()
        for slot, value in _as_it_is_then(distinct(claims), shot, window)
    )


def empty_in_window(text: str, window: Window) -> list[Slot]:
    """The places of the window's shots at which a description says that nothing is."""
    return [(shot, sentence.empty) for shot, sentence in _sentences_in_window(text, window) if sentence.empty]


def _sentences_in_window(text: str, window: Window) -> Iterator[tuple[int, Sentence]]:
    """Each sentence that concerns the window, with the shot that it is about."""
    first, last = window.span
    caption = parse_video(text)
    spans: list[tuple[Span, tuple[Sentence, ...]]]
    if caption.segments:
        spans = [((max(s.start, first), min(s.end, last)), s.sentences) for s in caption.segments]
    elif window.shots:
        spans = [(max(window.shots, key=lambda shot: shot[1] - shot[0]), parse_segment(text))]
    else:
        spans = []
    for (start, end), sentences in spans:
        if end <= start:
            continue
        shot = shot_of(start, end, window.shots)
        if shot not in window.slivers:
            yield from ((shot, sentence) for sentence in sentences)


def _as_it_is_then(claims: Sequence[Claim], shot: int, window: Window) -> Iterator[Claim]:
    """Claims about a shot, without the shot, with those about objects as ``_then`` leaves them."""
    objects: dict[str, list[Claim]] = defaultdict(list)
    for slot, value in claims:
        if slot[0] in VIDEO_PLACES:
            objects[str(slot[0])].append((slot, value))
        else:
            yield slot, value
    for place, told in objects.items():
        said = {str(slot[1]): value for slot, value in told}
        # Several values for one slot are wrong whenever they are meant.
        yield from told if len(said) < len(told) else _then(place, said, (shot, place), window)


def _then(place: str, said: Mapping[str, str], owner: Slot, window: Window) -> Iterator[Claim]:
    """What a description of an object, kind -> value, says of it within the window.

    An object that appears later or has disappeared before is not there, one that has turned has its new colour, and
    what happens at another time is not asked about. Where no time is told, the frames decide whether it is yet to come
    or over.
    """
    first, last = window.span
    event, time = said.get("event"), float(said["time"]) if "time" in said else None
    before, after = time is not None and time <= first, time is not None and time >= last
    unseen = window.things is not None and owner not in window.things
    if (
        (event == "appears" and after)
        or (event == "disappears" and before)
        or (event in ("appears", "disappears") and time is None and unseen)
    ):
        return
    left = dict(said)
    if event == "changes" and (before or (time is None and owner in window.quiet)):
        left.pop("colour", None)
        if before and "colour" in said and "into" in said:
            left["colour"] = said["into"]
    if before or after:
        for kind in HAPPENINGS:
            left.pop(kind, None)
    yield from (((place, kind), value) for kind, value in left.items())
