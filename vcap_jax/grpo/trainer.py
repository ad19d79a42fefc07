"""The trainer: one linear loop of collect, advantage, update, log, save.

What a step does depends on the configuration, the state, the step number and the place in the data alone. All four
are in a checkpoint, so a run that was killed and resumed ends bit for bit like one that was left alone.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vcap_jax.checkpoint import Checkpointer
from vcap_jax.compile_counter import CompileCounter
from vcap_jax.config import RunConfig
from vcap_jax.data.examples import Example
from vcap_jax.data.pipeline import GroupIterator
from vcap_jax.grpo.advantages import GroupAdvantages, group_advantages, overlong_penalty
from vcap_jax.grpo.collect import Collector, GroupRecord, StepRollout
from vcap_jax.grpo.mismatch import Moments, mismatch_metrics
from vcap_jax.grpo.objective import step_totals
from vcap_jax.grpo.optimizer import TrainState
from vcap_jax.grpo.step import CaptionBatch, UpdatePrograms, take_groups
from vcap_jax.grpo.step_metrics import alarm_metrics, judge_metrics, reward_metrics
from vcap_jax.policy import Params
from vcap_jax.report.metrics import MetricsWriter
from vcap_jax.report.progress import Progress
from vcap_jax.reward.alarms import AlarmWatch
from vcap_jax.reward.errors import JudgeUnavailable
from vcap_jax.rollout.engine import RolloutError


class TrainingStopped(RuntimeError):
    """The run ended before its last step, in a state that --resume continues; the message says why."""


@dataclass(frozen=True)
class StepResult:
    """What observers of the run may look at after step ``step`` (1-based)."""

    step: int
    records: tuple[GroupRecord, ...]
    advantages: GroupAdvantages
    row: dict[str, Any]


@dataclass(frozen=True)
class Training:
    """Everything a run is made of; ``run`` goes through the steps.

    reference: the frozen reference policy's parameters, or None when beta is 0.
    place: puts a host batch on the devices, sharded by group.
    rollout_weights: ``UpdatePrograms.rollout_weights`` if captions come from another engine than the JAX sampler.
    learning_rate: step -> rate, for the log.
    measure: further metrics of a step's captions.
    observe: called after every step, before its checkpoint (samples page, plots).
    """

    config: RunConfig
    total_steps: int
    programs: UpdatePrograms
    frozen: Params
    reference: Params | None
    data: GroupIterator
    collector: Collector
    checkpoints: Checkpointer
    metrics: MetricsWriter
    progress: Progress
    place: Callable[[Any], Any]
    rollout_weights: Callable[..., tuple[jax.Array, Moments]] | None
    learning_rate: Callable[[int], Any]
    measure: Callable[[Sequence[GroupRecord]], Mapping[str, float]]
    observe: Callable[[StepResult], None]
    alarms: AlarmWatch

    def run(self, state: TrainState) -> TrainState:
        """Trains from ``state`` (donated) to the last step and saves; returns the final state.

        Raises TrainingStopped when rollout engine or judge cannot be used any more, when the judge has scored
        nothing in a step, or on SIGTERM, with everything that was done saved.
        """
        config, compiles = self.config, CompileCounter()
        with compiles, stop_on_signal() as stop_requested:
            done = int(state.step) // config.grpo.updates_per_step
            for step in range(done, self.total_steps):
                begin = time.monotonic()
                compiled = compiles.count
                place_in_data = self.data.get_state()
                batch = next(self.data)
                for bad in batch.skipped:
                    self.progress.message(f"skipped sample {bad.id}: {bad.reason}")
                judge_before = self.collector.session.statistics()
                rollout = self._collect(state, batch.examples, step, place_in_data)
                advantages = self._advantages(rollout)
                if advantages.skipped.all():
                    self._stop_without_rewards(rollout, step)
                update_begin = time.monotonic()
                state, update_metrics = self._update(state, rollout, advantages)
                update_seconds = time.monotonic() - update_begin
                row: dict[str, Any] = {"step": step + 1}
                row |= reward_metrics(rollout.records, advantages)
                if self.config.grpo.overlong.weight:
                    row["reward/overlong"] = float(self._overlong(rollout.records).mean())
                row |= self.measure(rollout.records)
                alarms, warnings = alarm_metrics(self.alarms, step + 1, rollout.records, row)
                row |= alarms
                if self.collector.second_judge is not None:
                    row |= self.collector.second_judge.metrics()
                row |= update_metrics | {"lr": float(self.learning_rate(step))}
                row |= judge_metrics(self.collector.session.statistics().since(judge_before))
                row["data/skipped"] = self.data.skipped_total
                tokens = sum(int(record.lengths.sum()) for record in rollout.records)
                row |= {
                    "seconds/rollout": rollout.rollout_seconds,
                    "seconds/judge": rollout.judge_seconds,
                    "seconds/update": update_seconds,
                    "seconds/step": time.monotonic() - begin,
                    "tokens_per_s/rollout": tokens / rollout.rollout_seconds,
                    "tokens_per_s/update": tokens / update_seconds,
                    "compiles": compiles.count - compiled,
                }
                self.metrics.write(row)
                self.observe(StepResult(step + 1, rollout.records, advantages, row))
                for warning in warnings:
                    self.progress.message(f"step {step + 1}: {warning}")
                self.progress.update(step + 1, row)
                last = step + 1 == self.total_steps
                if last or stop_requested.is_set() or (step + 1) % config.logging.save_every == 0:
                    self.checkpoints.save(step + 1, state, self.data.get_state())
                if stop_requested.is_set() and not last:
                    self.checkpoints.wait()
                    raise TrainingStopped(
                        f"stopped by a signal after step {step + 1}; continue with --resume"
                    )
        self.checkpoints.wait()
        return state

    def _collect(
        self, state: TrainState, examples: Sequence[Example], step: int, place_in_data: Any
    ) -> StepRollout:
        """``place_in_data``: before this step, which is saved with the state if the step cannot be done."""
        try:
            return self.collector.collect(state.params, examples, step)
        except (RolloutError, JudgeUnavailable) as error:
            if step > 0 and step not in self.checkpoints.steps():
                self.checkpoints.save(step, state, place_in_data)
            self.checkpoints.wait()
            raise TrainingStopped(
                f"step {step + 1}: {error}. The {step} steps before it are saved; once it is mended, continue "
                "with --resume"
            ) from error

    def _advantages(self, rollout: StepRollout) -> GroupAdvantages:
        rewards = np.array(
            [[np.nan if r is None else r for r in record.scores.rewards] for record in rollout.records]
        )
        rewards = rewards + self._overlong(rollout.records)
        return group_advantages(rewards, np.isfinite(rewards), self.config.grpo.advantages)

    def _overlong(self, records: Sequence[GroupRecord]) -> np.ndarray:
        """[B, G]: what length costs the captions."""
        lengths = np.stack([record.lengths for record in records])
        return overlong_penalty(lengths, self.config.rollout.max_completion_length, self.config.grpo.overlong)

    def _update(
        self, state: TrainState, rollout: StepRollout, advantages: GroupAdvantages
    ) -> tuple[TrainState, dict[str, float]]:
        grpo = self.config.grpo
        lengths = np.stack([record.lengths for record in rollout.records])
        width = self._caption_width(int(lengths.max()))
        micro = list(self._micro_batches(rollout, advantages, lengths, width))
        totals = step_totals(jnp.asarray(lengths), jnp.asarray(advantages.contributes), len(micro))
        reference = [self._logprobs(self.reference, part) for part in micro]
        weights, moments = self._rollout_weights(state.params, micro)
        old: list[jax.Array | None] = [None] * len(micro)
        if grpo.updates_per_step > 1:
            old = [self._logprobs(state.params, part) for part in micro]
        shares: list[Any] = []
        for _ in range(grpo.updates_per_step):
            gradients = self.programs.zeros(state.params)
            shares = []
            for (prompt, features, captions), before, anchor, weight in zip(
                micro, old, reference, weights, strict=True
            ):
                gradients, share = self.programs.accumulate(
                    state.params,
                    self.frozen,
                    gradients,
                    prompt,
                    features,
                    captions,
                    totals,
                    before,
                    anchor,
                    weight,
                )
                shares.append(share)
            state, applied = self.programs.apply(state, gradients)
        # One transfer at the very end: until here nothing has waited for the device.
        shares, applied, moments = jax.device_get((shares, applied, moments))
        summed = {key: float(sum(share[key] for share in shares)) for key in shares[0]}
        row = {_METRIC_NAMES.get(key, key): value for key, value in summed.items()}
        return state, row | {"grad_norm": float(applied["grad_norm"])} | mismatch_metrics(moments)

    def _micro_batches(
        self, rollout: StepRollout, advantages: GroupAdvantages, lengths: np.ndarray, width: int
    ) -> Iterator[tuple[Any, Any, CaptionBatch]]:
        size, per_batch = self.config.grpo.groups_per_micro_batch, self.config.rollout.groups_per_batch
        tokens = np.stack([record.tokens[:, :width] for record in rollout.records])
        # None in every record or in none: a step has one engine.
        reported = [r.sampler_logprobs for r in rollout.records if r.sampler_logprobs is not None]
        sampler = np.stack(reported)[..., :width] if reported else None
        first = 0
        for batch in rollout.batches:
            # The last batch of a step may be short; its padding groups take no part.
            rows = slice(first, first + batch.groups)
            captions = CaptionBatch(
                tokens=_pad_rows(tokens[rows], per_batch),
                lengths=_pad_rows(lengths[rows], per_batch),
                advantages=_pad_rows(np.asarray(advantages.advantages[rows], np.float32), per_batch),
                contributes=_pad_rows(np.asarray(advantages.contributes[rows]), per_batch),
                sampler_logprobs=None if sampler is None else _pad_rows(sampler[rows], per_batch),
            )
            for start in range(0, per_batch, size):
                if start >= batch.groups:
                    break
                yield (
                    take_groups(batch.prompt, start, start + size),
                    take_groups(batch.features, start, start + size),
                    self.place(take_groups(captions, start, start + size)),
                )
            first += batch.groups

    def _rollout_weights(
        self, params: Params, micro: Sequence[tuple[Any, Any, CaptionBatch]]
    ) -> tuple[list[jax.Array | None], list[Moments]]:
        """Importance weights for captions of another engine than ours, and how far its numbers lie from ours."""
        if self.rollout_weights is None:
            return [None] * len(micro), []
        pairs = [self.rollout_weights(params, self.frozen, *part) for part in micro]
        return [weights for weights, _ in pairs], [moments for _, moments in pairs]

    def _logprobs(self, params: Params | None, part: tuple[Any, Any, CaptionBatch]) -> jax.Array | None:
        if params is None:
            return None
        prompt, features, captions = part
        return self.programs.logprobs(params, self.frozen, prompt, features, captions.tokens)

    def _caption_width(self, longest: int) -> int:
        full = self.config.rollout.max_completion_length
        return min([b for b in self.config.grpo.caption_buckets if longest <= b] + [full])

    def _stop_without_rewards(self, rollout: StepRollout, step: int) -> None:
        failures = [c.failure for record in rollout.records for c in record.scores.candidates if c.failure]
        shown = "; ".join(dict.fromkeys(f"{f.reason}: {f.detail}" for f in failures[:3]))
        self.checkpoints.wait()
        raise TrainingStopped(
            f"step {step + 1}: no group has two scored candidates, so there is nothing to learn from. "
            f"The judge's last failures: {shown or 'none'}. Once it answers again, continue with --resume"
        )


_METRIC_NAMES = {"clip_low": "clip/low", "clip_high": "clip/high"}


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    missing = rows - len(array)
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array


@contextmanager
def stop_on_signal(signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> Iterator[threading.Event]:
    """An event that is set when one of ``signals`` arrives, so that a step is finished and saved first."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {s: signal.signal(s, lambda *_: event.set()) for s in signals}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
