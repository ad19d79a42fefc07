"""What goes into a reward family and what comes out of it: a group, and the scores of its candidates.

A score is a value or a failure. What a candidate earns is a number with named components; what judge or data lack is a
:class:`Failure`, which masks the candidate and never becomes a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from vcap_jax.data.judge_media import EncodedMedia
from vcap_jax.data.media import TimeWindow
from vcap_jax.data.references import ReferencePool
from vcap_jax.reward.failures import Failure
from vcap_jax.reward.scores import Scores
from vcap_jax.reward.segments import Segment

_COMPONENT = re.compile(r"[a-z][a-z0-9_]*(?:/[a-z][a-z0-9_]*)?")
_RESERVED = ("mean", "std")


@dataclass(frozen=True, kw_only=True)
class GroupPrompt:
    """What the captions of a group are held against; known before any of them is.

    step, index: of the training step and in it, among the groups of all processes; together they name the group, where
        ``sample_id`` may occur more than once. Both count from 0: of the steps that metrics and messages number from 1,
        this is the one before.
    reference: the caption that this step compares with; None only where the family uses none.
    references: all that the pool has of the sample, for families that compare with every one.
    reference_segments: the reference pool's own segments of a video, for ``local.reference: segment``.
    """

    sample_id: str
    step: int
    index: int
    media: EncodedMedia
    reference: str | None
    references: tuple[str, ...] = ()
    reference_segments: tuple[Segment, ...] = ()

    def with_captions(self, captions: tuple[str, ...]) -> GroupForReward:
        """The whole group."""
        own = {one.name: getattr(self, one.name) for one in fields(GroupPrompt)}
        return GroupForReward(captions=captions, **own)


@dataclass(frozen=True, kw_only=True)
class GroupForReward(GroupPrompt):
    """One prompt with its reference and its G candidates.

    captions: the G sampled texts as they are, cut off or not.
    """

    captions: tuple[str, ...]


def compared_with(
    pool: ReferencePool, identity: str, *, seed: int, step: int
) -> tuple[str, tuple[Segment, ...]]:
    """The reference of a sample that a step compares with, and the one of its segments, if the pool has some.

    Raises KeyError for a sample without a reference.
    """
    chosen = pool.pick_segment(identity, seed, step)
    segments: tuple[Segment, ...] = ()
    if chosen is not None:
        span, text = chosen
        segments = (Segment(start=span.start, end=span.end, text=text),)
    return pool.pick(identity, seed, step), segments


@dataclass(frozen=True, kw_only=True)
class CandidateScore:
    """What one candidate earned.

    reward: None if anything it needs failed; then ``failure`` says why, and what did succeed is still here.
    components: what the reward is made of, by the family's own names; the metrics show their means as
        ``reward/NAME``. "area/name" puts those of one area into a panel of their own.
    notes: texts for the sample page by their headings, such as the judge's analysis.
    verdicts: by pass, of families that ask for verdicts.
    keys: by pass the key of an answer in the store; None for a text that nobody was asked about, "" for one that
        failed or was not stored.

    Raises ValueError for a reward or a component that is not finite, a reward with a failure or without either, and
    a name that cannot be a metric's.
    """

    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    failure: Failure | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[str, Scores] = field(default_factory=dict)
    keys: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.failure is not None):
            raise ValueError(
                f"a candidate has a reward or a failure, not reward {self.reward} and failure {self.failure}"
            )
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"the reward {self.reward} is not finite: make it a failure")
        for name, value in self.components.items():
            if not _COMPONENT.fullmatch(name) or name in _RESERVED:
                raise ValueError(
                    f"the component {name!r} cannot be named so: small letters, digits and _, one / at most, "
                    f"and not {' or '.join(_RESERVED)}"
                )
            if not math.isfinite(value):
                raise ValueError(f"the component {name!r} is {value}: leave out what has no value")


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """The group's candidates in the order of its captions.

    full_reward: the most that a candidate of this group could earn, and no reward is above it; None where the family
        knows no limit. What a run takes off later, for the length (``grpo.overlong``), does not count.
    weights: of the components whose weighted sum every reward of the group is, for ``grpo.advantages.per_component``;
        empty where the reward is no such sum.
    window: of a pass over a part of a video, None without one.
    """

    sample_id: str
    step: int
    candidates: tuple[CandidateScore, ...]
    full_reward: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    window: TimeWindow | None = None

    @property
    def rewards(self) -> list[float | None]:
        return [candidate.reward for candidate in self.candidates]


def all_failed(group: GroupPrompt, size: int, failure: Failure) -> GroupScores:
    """The scores of a group of ``size`` captions about which nothing can be said."""
    candidates = tuple(CandidateScore(reward=None, failure=failure) for _ in range(size))
    return GroupScores(sample_id=group.sample_id, step=group.step, candidates=candidates)


def unjudgeable(prompt: GroupPrompt, reference: str | None) -> Failure | None:
    """Why nothing can be said of any caption of a group: a reference without text, a video without an end; None if
    something can. reference: what captions are compared with, None where it is nothing."""
    if reference is not None and not reference.strip():
        return Failure(reason="no_reference", detail=f"the reference of {prompt.sample_id!r} has no text")
    if prompt.media.modality == "video" and not 0 < prompt.media.duration < math.inf:
        detail = f"{prompt.sample_id!r}: a video of {prompt.media.duration} seconds"
        return Failure(reason="media", detail=detail)
    return None
