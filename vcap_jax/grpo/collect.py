"""One step's experience: examples -> visual features -> captions -> scores.

Groups are handed to the judge the moment their last caption ends, so judging overlaps with the decoding of the
groups behind them; what is left to wait for at the end is measured as the judge's share of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from vcap_jax.data.examples import Example
from vcap_jax.data.references import ReferencePool
from vcap_jax.grpo.step import UpdatePrograms
from vcap_jax.policy import Params, Policy
from vcap_jax.qwen3_vl.processing import Buckets, collate
from vcap_jax.reward.second_judge import SecondJudge
from vcap_jax.reward.segments import Segment
from vcap_jax.reward.session import RewardSession
from vcap_jax.reward.witness_adjudicator import GroupForReward, GroupScores
from vcap_jax.rollout.engine import RolloutBatch, RolloutEngine


@dataclass(frozen=True)
class GroupRecord:
    """One group with everything known of it.

    tokens: [G, T] int32; lengths: [G]; truncated: [G] bool; captions: their texts; scores: the judge's.
    sampler_logprobs: [G, T] float32, what the rollout engine drew each token with; None from the JAX sampler.
    """

    example: Example
    reference: str | None
    tokens: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    captions: tuple[str, ...]
    scores: GroupScores
    sampler_logprobs: np.ndarray | None = None


@dataclass(frozen=True)
class StepRollout:
    """A step's groups in order, and the batches whose prompts and features stay on the device for the update.

    rollout_seconds: encoding and decoding; judge_seconds: waiting for scores after the last caption had ended.
    """

    batches: tuple[RolloutBatch, ...]
    records: tuple[GroupRecord, ...]
    rollout_seconds: float
    judge_seconds: float


@dataclass(frozen=True)
class Collector:
    """Gathers the experience of one step.

    groups_per_batch: groups that share a device batch. place: puts a host batch on the devices.
    use_reference: whether the reward has a witness. seed: of the choice of references.
    second_judge: asked about some of the captions as well; nothing waits for it.
    """

    policy: Policy
    programs: UpdatePrograms
    engine: RolloutEngine
    session: RewardSession
    pool: ReferencePool | None
    buckets: Buckets
    groups_per_batch: int
    use_reference: bool
    seed: int
    place: Callable[[Any], Any]
    second_judge: SecondJudge | None = None

    def collect(self, params: Params, examples: Sequence[Example], step: int) -> StepRollout:
        """Captions and scores for all ``examples``. Raises KeyError for a sample without a needed reference, and
        RolloutError if the engine fails."""
        begin = time.monotonic()
        batches: list[RolloutBatch] = []
        pending: list[tuple[Example, str | None, Any, tuple[str, ...], Future[GroupScores]] | None]
        pending = [None] * len(examples)
        for group in self.engine.stream(params, self._batches(params, examples, batches), step=step):
            example = examples[group.index]
            captions = self.policy.texts(group.tokens, group.lengths)
            reference, segments = self._reference(example, step)
            asked = GroupForReward(
                sample_id=example.sample.id,
                step=step,
                media=example.media,
                reference=reference,
                captions=captions,
                reference_segments=segments,
            )
            future = self.session.submit(asked)
            if self.second_judge is not None:
                self.second_judge.consider(asked, future)
            pending[group.index] = (example, reference, group, captions, future)
        decoded = time.monotonic()
        records = []
        for entry in pending:
            assert entry is not None  # the engine yields every real group once
            example, reference, group, captions, future = entry
            records.append(
                GroupRecord(
                    example=example,
                    reference=reference,
                    tokens=group.tokens,
                    lengths=group.lengths,
                    truncated=group.truncated,
                    captions=captions,
                    scores=future.result(),
                    sampler_logprobs=group.logprobs,
                )
            )
        return StepRollout(tuple(batches), tuple(records), decoded - begin, time.monotonic() - decoded)

    def _batches(
        self, params: Params, examples: Sequence[Example], made: list[RolloutBatch]
    ) -> Iterator[RolloutBatch]:
        """Device batches of ``examples``, made as the engine asks for them and appended to ``made``."""
        for first in range(0, len(examples), self.groups_per_batch):
            part = examples[first : first + self.groups_per_batch]
            prompt = self.place(
                collate(
                    [example.prompt for example in part],
                    self.buckets,
                    self.policy.processor.merge_size,
                    names=[example.sample.id for example in part],
                    batch_size=self.groups_per_batch,
                )
            )
            features = None
            if prompt.vision is not None:
                features = self.programs.encode(params, self.policy.frozen, prompt)
            made.append(RolloutBatch(first, part, prompt, features))
            yield made[-1]

    def _reference(self, example: Example, step: int) -> tuple[str | None, tuple[Segment, ...]]:
        if not self.use_reference or self.pool is None:
            return None, ()
        identity = example.sample.id
        chosen = self.pool.pick_segment(identity, self.seed, step)
        segments: tuple[Segment, ...] = ()
        if chosen is not None:
            span, text = chosen
            segments = (Segment(start=span.start, end=span.end, text=text),)
        return self.pool.pick(identity, self.seed, step), segments
