"""One step's experience: examples -> visual features -> captions -> scores.

Groups are handed to the judge the moment their last caption ends, so judging overlaps with the decoding of the
groups behind them; what is left to wait for at the end is measured as the judge's share of the step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import astuple, dataclass, replace

from vcap_jax.data.batching import PromptBatcher, common_sizes
from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupBatch
from vcap_jax.data.references import ReferencePool
from vcap_jax.grpo.records import GroupRecord, StepRollout
from vcap_jax.models.buckets import PaddedSizes
from vcap_jax.models.policy import Params, Policy
from vcap_jax.parallel.processes import ALONE, Processes
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.reward.group import GroupForReward, GroupScores, compared_with
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.reward.segments import Segment
from vcap_jax.reward.session import RewardSession
from vcap_jax.rollout.engine import RolloutBatch, RolloutEngine
from vcap_jax.rollout.slots import SampledGroup
from vcap_jax.system.shutdown import requested

_LOOK_EVERY_S = 1.0
"""Between two looks at whether the run was asked to end, while scores are waited for."""


@dataclass(frozen=True)
class Collector:
    """Gathers the experience of one step: this process's groups, on its own devices.

    batcher: makes device batches of this process's groups, which are its share of the update's micro-batches: each is
        padded to its own prompts, however many groups decode side by side.
    pool: None where the reward uses no references. seed: of the choice of references.
    second_judge: asked about some of the captions as well; nothing waits for it.
    """

    policy: Policy
    engine: RolloutEngine
    session: RewardSession
    pool: ReferencePool | None
    batcher: PromptBatcher
    seed: int
    processes: Processes = ALONE
    second_judge: SecondJudge | None = None

    def collect(self, params: Params, batch: GroupBatch[Example], step: int) -> StepRollout:
        """Captions and scores for the groups of this process. Raises KeyError for a sample without a needed reference,
        and RolloutError if the engine fails."""
        begin = time.monotonic()
        examples = batch.examples
        row_of = {index: row for row, index in enumerate(batch.indices)}
        batches: list[RolloutBatch] = []
        pending: list[tuple[Example, str | None, SampledGroup, tuple[str, ...], Future[GroupScores]] | None]
        pending = [None] * len(examples)
        by_size = self._by_size(batch)
        sizes = self._sizes(by_size)
        for group in self.engine.stream(params, self._batches(params, by_size, sizes, batches), step=step):
            row = row_of[group.index]
            example = examples[row]
            captions = self.policy.texts(group.tokens, group.lengths)
            reference, segments = self._reference(example, step)
            asked = GroupForReward(
                sample_id=example.sample.id,
                step=step,
                index=group.index,
                media=example.media,
                reference=reference,
                captions=captions,
                references=() if self.pool is None else self.pool[example.sample.id].references,
                reference_segments=segments,
            )
            future = self.session.submit(asked)
            if self.second_judge is not None:
                self.second_judge.consider(asked, future)
            pending[row] = (example, reference, group, captions, future)
        decoded = time.monotonic()
        records = []
        for index, entry in zip(batch.indices, pending, strict=True):
            assert entry is not None  # the engine yields every real group once
            example, reference, group, captions, future = entry
            records.append(
                GroupRecord(
                    index=index,
                    sample_id=example.sample.id,
                    example=example,
                    reference=reference,
                    tokens=group.tokens,
                    lengths=group.lengths,
                    truncated=group.truncated,
                    captions=captions,
                    scores=self._scored(future),
                    sampler_logprobs=group.logprobs,
                )
            )
        return StepRollout(
            batches=tuple(batches),
            records=tuple(records),
            rollout_seconds=decoded - begin,
            judge_seconds=time.monotonic() - decoded,
            measured=self.engine.measured(),
        )

    def _scored(self, future: Future[GroupScores]) -> GroupScores:
        """What the reward gave. A run that was asked to end does not wait for a judge that is gone: raises
        JudgeUnavailable then, as after a long outage."""
        while not wait([future], timeout=_LOOK_EVERY_S).done:
            if requested() and (gone := self.session.unreachable) is not None:
                raise JudgeUnavailable(f"the run was asked to end while {gone}")
        return future.result()

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
        self, params: Params, batch: GroupBatch[Example], sizes: list[PaddedSizes], made: list[RolloutBatch]
    ) -> Iterator[RolloutBatch]:
        """Device batches of the groups, made as the engine asks for them and appended to ``made``."""
        size = self.batcher.groups
        for number, padded in enumerate(sizes):
            cut = slice(number * size, (number + 1) * size)
            part = batch.examples[cut]
            prompt, features = self.batcher.batch(params, part, padded)
            made.append(RolloutBatch(part, batch.indices[cut], prompt, features))
            yield made[-1]

    def _reference(self, example: Example, step: int) -> tuple[str | None, tuple[Segment, ...]]:
        if self.pool is None:
            return None, ()
        return compared_with(self.pool, example.sample.id, seed=self.seed, step=step)
