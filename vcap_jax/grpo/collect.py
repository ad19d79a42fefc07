"""One step's experience: examples -> visual features -> captions -> scores.

Captions are handed to the judge the moment they end, so judging overlaps with the decoding of the others, and with what
the caller does between ``draw`` and ``scored``; what is left to wait for then is measured as the judge's share of the
step. A judge that takes turns on the same devices has its own in ``judged``, when all captions are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import astuple, dataclass, replace

import numpy as np

from vcap_jax.data.batching import PromptBatcher, common_sizes
from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupBatch
from vcap_jax.data.references import ReferencePool
from vcap_jax.grpo.records import GroupRecord, StepRollout
from vcap_jax.models.buckets import PaddedSizes
from vcap_jax.models.policy import Params, Policy
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.group import GroupForReward, GroupPrompt, GroupScores, compared_with
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.reward.segments import Segment
from vcap_jax.reward.session import GroupInWork, RewardSession
from vcap_jax.rollout.engine import KnownCaptions, RolloutBatch, RolloutEngine
from vcap_jax.rollout.slots import SampledCaption, SampledGroup
from vcap_jax.system.in_work import until_ended
from vcap_jax.system.shutdown import requested


@dataclass(frozen=True)
class Collector:
    """Gathers the experience of one step: this process's groups, on its own devices.

    batcher: makes device batches of this process's groups, which are its share of the update's micro-batches: each is
        padded to its own prompts, however many groups decode side by side.
    pool: None where the reward uses no references. seed: of the choice of references. group_size: captions of a group.
    second_judge: asked about some of the captions as well; nothing waits for it.
    looks_first: all pictures are looked at before the engine begins to draw, for then it needs these devices.
    """

    policy: Policy
    engine: RolloutEngine
    session: RewardSession
    pool: ReferencePool | None
    batcher: PromptBatcher
    seed: int
    group_size: int
    processes: Processes = ALONE
    second_judge: SecondJudge | None = None
    looks_first: bool = False

    def draw(
        self,
        params: Params,
        batch: GroupBatch[Example],
        step: int,
        known: Mapping[int, SampledGroup] | None = None,
        make_room: Callable[[], None] = lambda: None,
    ) -> StepDraw:
        """Captions for the groups of this process, which are with the judge.

        known: captions of these groups that were drawn before, by index; None draws. make_room: called once, when the
        engine has its copy of ``params`` and the first pictures are being looked at (all of them, with
        ``looks_first``), before the engine makes its caches; from then on ``params`` are not used. Raises KeyError for
        a sample without a needed reference, and RolloutError if the engine fails.
        """
        engine = self.engine if known is None else KnownCaptions(known)
        begin = time.monotonic()
        examples = batch.examples
        row_of = {index: row for row, index in enumerate(batch.indices)}
        batches: list[RolloutBatch] = []
        judged: dict[int, JudgedGroup] = {}

        def ended(caption: SampledCaption) -> None:
            """To the judge; the first of its group opens the group."""
            if caption.index not in judged:
                example = examples[row_of[caption.index]]
                judged[caption.index] = self._opened(example, caption.index, step)
            (text,) = self.policy.texts(caption.tokens[None], np.array([len(caption.tokens)]))
            judged[caption.index].end(caption.place, text)

        drawn: dict[int, SampledGroup] = {}
        by_size = self._by_size(batch)
        made = self._batches(params, by_size, self._sizes(by_size), batches, make_room)
        for group in engine.stream(params, made, step=step, ended=ended):
            drawn[group.index] = group
            if self.second_judge is not None:
                self.second_judge.consider(judged[group.index].whole(), judged[group.index].scores)
        return StepDraw(
            batches=tuple(batches),
            examples=examples,
            # The engine yields every real group once.
            groups=tuple(drawn[index] for index in batch.indices),
            judged=tuple(judged[index] for index in batch.indices),
            seconds=time.monotonic() - begin,
            measured=engine.measured(),
        )

    def judged(self, draw: StepDraw) -> StepDraw:
        """The same once a judge that takes turns has had its own: it has answered about every caption, or failed to;
        ``scored`` tells which. Any other judge is not waited for. Raises JudgeUnavailable for one that cannot sleep or
        wake up, or is gone from a run that was asked to end."""
        if not self.session.takes_turns:
            return draw
        begin = time.monotonic()
        with self.session.turn():
            for group in draw.judged:
                until_ended(group.scores, self._end_if_asked)
        return replace(draw, judge_seconds=time.monotonic() - begin)

    def scored(self, draw: StepDraw) -> StepRollout:
        """The captions with their scores, once the judge has given them all. Raises JudgeUnavailable and its kinds,
        StoreError, FamilyError."""
        begin = time.monotonic()
        records = tuple(
            GroupRecord(
                index=group.index,
                sample_id=example.sample.id,
                example=example,
                reference=judged.prompt.reference,
                tokens=group.tokens,
                lengths=group.lengths,
                truncated=group.truncated,
                captions=judged.whole().captions,
                scores=until_ended(judged.scores, self._end_if_asked).result(),
                sampler_logprobs=group.logprobs,
            )
            for example, group, judged in zip(draw.examples, draw.groups, draw.judged, strict=True)
        )
        return StepRollout(
            batches=draw.batches,
            records=records,
            rollout_seconds=draw.seconds,
            judge_seconds=draw.judge_seconds + time.monotonic() - begin,
            measured=draw.measured,
        )

    def _end_if_asked(self) -> None:
        """A run that was asked to end does not wait for a judge that is gone: raises JudgeUnavailable, as after a long
        outage."""
        if requested() and (gone := self.session.unreachable) is not None:
            raise JudgeUnavailable(f"the run was asked to end while {gone}")

    def _by_size(self, batch: GroupBatch[Example]) -> GroupBatch[Example]:
        """The groups, those with the largest prompts first.

        A device batch is padded to its largest prompt, and slots as wide as the prompts that come
        first have room for those behind. What is drawn does not depend on the order.
        """

        def size(row: int) -> tuple[int, ...]:
            return astuple(self.batcher.sizes([batch.examples[row]]))

        # Stable: groups of one size stay in their order.
        order = sorted(range(len(batch.examples)), key=size, reverse=True)
        return replace(
            batch,
            examples=tuple(batch.examples[row] for row in order),
            indices=tuple(batch.indices[row] for row in order),
        )

    def _sizes(self, batch: GroupBatch[Example]) -> list[PaddedSizes]:
        """Of each device batch; the same in all processes, whose batches become one in the update."""
        size = self.batcher.groups
        parts = [batch.examples[first : first + size] for first in range(0, len(batch.examples), size)]
        return common_sizes(self.processes, [self.batcher.sizes(part) for part in parts])

    def _batches(
        self,
        params: Params,
        batch: GroupBatch[Example],
        sizes: list[PaddedSizes],
        made: list[RolloutBatch],
        make_room: Callable[[], None],
    ) -> Iterator[RolloutBatch]:
        """Device batches of the groups, made as the engine asks for them and appended to ``made``."""
        size = self.batcher.groups
        for number, padded in enumerate(sizes):
            cut = slice(number * size, (number + 1) * size)
            part = batch.examples[cut]
            prompt, features = self.batcher.batch(params, part, padded)
            made.append(RolloutBatch(part, batch.indices[cut], prompt, features))
            if number == (len(sizes) - 1 if self.looks_first else 0):
                make_room()
            yield made[-1]

    def _opened(self, example: Example, index: int, step: int) -> JudgedGroup:
        """The group as the judge is given it, before any of its captions."""
        identity, references = example.sample.id, tuple[str, ...]()
        reference, segments = None, tuple[Segment, ...]()
        if self.pool is not None:
            references = self.pool[identity].references
            reference, segments = compared_with(self.pool, identity, seed=self.seed, step=step)
        prompt = GroupPrompt(
            sample_id=identity,
            step=step,
            index=index,
            media=example.media,
            reference=reference,
            references=references,
            reference_segments=segments,
        )
        return JudgedGroup(prompt, self.session.open(prompt, self.group_size))


class JudgedGroup:
    """A group that is with the judge, and those of its captions that have ended."""

    def __init__(self, prompt: GroupPrompt, work: GroupInWork) -> None:
        self.prompt, self._work = prompt, work
        self._captions: dict[int, str] = {}

    @property
    def scores(self) -> Future[GroupScores]:
        return self._work.scores

    def end(self, place: int, caption: str) -> None:
        self._captions[place] = caption
        self._work.end(place, caption)

    def whole(self) -> GroupForReward:
        """The group, all of whose captions have ended."""
        return self.prompt.with_captions(tuple(self._captions[place] for place in sorted(self._captions)))


@dataclass(frozen=True, kw_only=True)
class StepDraw:
    """This process's captions of a step, which are with the judge, in the order of their groups.

    batches: whose prompts and features stay on its devices for the update. seconds: of encoding and decoding. measured:
    the rollout engine's own metrics. judge_seconds: of the judge's turn, where it takes turns.
    """

    batches: tuple[RolloutBatch, ...]
    examples: tuple[Example, ...]
    groups: tuple[SampledGroup, ...]
    judged: tuple[JudgedGroup, ...]
    seconds: float
    measured: Mapping[str, float]
    judge_seconds: float = 0.0
