"""What has changed about a sample since a run first showed it: the best captions side by side, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from operator import itemgetter

from vcap_jax.report.samples import Sample, SampleCandidate
from vcap_jax.system.words import UNSPACED

# A word or a sign with the space after it, so that a text is exactly its pieces.
_PIECE = re.compile(rf"[{UNSPACED}]\s*|[^\W{UNSPACED}]+\s*|[^\w\s]\s*|\s+")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of a text. changed: it is not in the other text."""

    text: str
    changed: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two texts in pieces. removed: words of the old one that are gone; added: words of the new one that it lacks;
    kept: words of both."""

    old: tuple[Piece, ...]
    new: tuple[Piece, ...]
    removed: int
    added: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class Version:
    """The best caption of a sample at a step: its text in pieces, its reward, and the group's mean reward. A reward is
    None where nothing was scored."""

    step: int
    pieces: tuple[Piece, ...]
    reward: float | None
    mean: float | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """then: when the sample was first shown. words: of the best captions."""

    then: Version
    now: Version
    words: Comparison


def change(then: Sample, now: Sample) -> Change:
    """What has changed between two steps that a sample was shown at."""
    best = [by_reward(sample.candidates)[0] for sample in (then, now)]
    words = compared(best[0].caption, best[1].caption)
    return Change(then=_version(then, best[0], words.old), now=_version(now, best[1], words.new), words=words)


def by_reward(candidates: Sequence[SampleCandidate]) -> list[SampleCandidate]:
    """Best first; those without a reward last."""
    return sorted(candidates, key=lambda c: (c.reward is None, -(c.reward or 0.0)))


def compared(old: str, new: str) -> Comparison:
    """Two texts, word by word."""
    before, after = _PIECE.findall(old), _PIECE.findall(new)
    removed, added, kept = [True] * len(before), [True] * len(after), 0
    # Words that come up all the time begin no match: a caption that repeats itself for pages would take minutes.
    old_words, new_words = ([piece.rstrip() for piece in pieces] for pieces in (before, after))
    for i, j, size in SequenceMatcher(None, old_words, new_words).get_matching_blocks():
        removed[i : i + size] = added[j : j + size] = [False] * size
        kept += _words(before[i : i + size])
    return Comparison(
        old=_joined(before, removed),
        new=_joined(after, added),
        removed=_words(before) - kept,
        added=_words(after) - kept,
        kept=kept,
    )


def _joined(pieces: Sequence[str], changed: Sequence[bool]) -> tuple[Piece, ...]:
    """Neighbours that are both changed, or both not, are one piece."""
    runs = groupby(zip(pieces, changed, strict=True), key=itemgetter(1))
    return tuple(Piece(text="".join(text for text, _ in run), changed=is_one) for is_one, run in runs)


def _version(sample: Sample, best: SampleCandidate, pieces: tuple[Piece, ...]) -> Version:
    rewards = [c.reward for c in sample.candidates if c.reward is not None]
    return Version(
        step=sample.step,
        pieces=pieces,
        reward=best.reward,
        mean=sum(rewards) / len(rewards) if rewards else None,
    )


def _words(pieces: Sequence[str]) -> int:
    return sum(piece[0].isalnum() for piece in pieces)
