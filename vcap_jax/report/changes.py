"""What has changed about a sample since a run first showed it: the best captions side by side, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from vcap_jax.report.samples import Sample, SampleCandidate

# A word or a sign with the space after it, so that a text is exactly its pieces.
_PIECE = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stretch of a text. changed: it is not in the other text."""

    text: str
    changed: bool


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
    """then: when the sample was first shown. removed: words of it that are gone; added: words of ``now`` that are
    new; kept: words of both."""

    then: Version
    now: Version
    removed: int
    added: int
    kept: int


def changes(samples: Sequence[Sample]) -> list[Change | None]:
    """For each of a run's samples, in order of steps, what has changed since the step at which it was first shown; None
    for that step itself."""
    first: dict[str, Sample] = {}
    found: list[Change | None] = []
    for sample in samples:
        then = first.setdefault(sample.id, sample)
        found.append(None if then.step == sample.step else _change(then, sample))
    return found


def by_reward(candidates: Sequence[SampleCandidate]) -> list[SampleCandidate]:
    """Best first; those without a reward last."""
    return sorted(candidates, key=lambda c: (c.reward is None, -(c.reward or 0.0)))


def _change(then: Sample, now: Sample) -> Change:
    best = [by_reward(sample.candidates)[0] for sample in (then, now)]
    old, new = (_PIECE.findall(candidate.caption) for candidate in best)
    removed, added, kept = [True] * len(old), [True] * len(new), 0
    # Words that come up all the time begin no match: a caption that repeats itself for pages would take minutes.
    then_words, now_words = ([piece.rstrip() for piece in pieces] for pieces in (old, new))
    for i, j, size in SequenceMatcher(None, then_words, now_words).get_matching_blocks():
        removed[i : i + size] = added[j : j + size] = [False] * size
        kept += _words(old[i : i + size])
    return Change(
        then=_version(then, best[0], old, removed),
        now=_version(now, best[1], new, added),
        removed=_words(old) - kept,
        added=_words(new) - kept,
        kept=kept,
    )


def _version(
    sample: Sample, best: SampleCandidate, pieces: Sequence[str], changed: Sequence[bool]
) -> Version:
    joined: list[Piece] = []
    for text, is_changed in zip(pieces, changed, strict=True):
        if joined and joined[-1].changed == is_changed:
            joined[-1] = Piece(text=joined[-1].text + text, changed=is_changed)
        else:
            joined.append(Piece(text=text, changed=is_changed))
    rewards = [c.reward for c in sample.candidates if c.reward is not None]
    return Version(
        step=sample.step,
        pieces=tuple(joined),
        reward=best.reward,
        mean=sum(rewards) / len(rewards) if rewards else None,
    )


def _words(pieces: Sequence[str]) -> int:
    return sum(piece[0].isalnum() for piece in pieces)
