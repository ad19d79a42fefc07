"""One segment of a video: which claims of a description concern it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vcap_jax.world.sentences import Sentence, distinct
from vcap_jax.world.video_grammar import parse_segment, parse_video, shot_of
from vcap_jax.world.vocabulary import Claim, Slot

LEAST_SHARE = 0.25
"""A shot that fills no more than this of a window is a sliver at its edge, about which nothing is asked."""

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of a video that is judged.

    shots: start and end in seconds of its shots (of the whole video's, where ``limits`` are given).
    limits: start and end in seconds; None where the shots begin and end with the window.
    slivers: indices of shots about which nothing is asked.
    """

    shots: tuple[Span, ...]
    limits: Span | None = None
    slivers: frozenset[int] = frozenset()

    @property
    def span(self) -> Span:
        """Start and end in seconds."""
        if self.limits is not None:
            return self.limits
        return (self.shots[0][0], self.shots[-1][1]) if self.shots else (0.0, 0.0)


def window_shots(shots: tuple[Span, ...]) -> Window:
    """The window whose frames show ``shots``."""
    total = shots[-1][1] - shots[0][0]
    slivers = frozenset(k for k, (a, b) in enumerate(shots) if b - a <= LEAST_SHARE * total + 1e-6)
    return Window(shots=shots, slivers=slivers if len(slivers) < len(shots) else frozenset())


def claims_in_window(text: str, window: Window) -> tuple[Claim, ...]:
    """The claims of a description that concern the window.

    A segment is about the shot that holds most of its part inside the window; one outside is out of range and
    says nothing here. Text without segments is about the longest shot.
    """
    told = _sentences_in_window(text, window)
    return distinct(((shot, *slot), value) for shot, sentence in told for slot, value in sentence.claims)


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
