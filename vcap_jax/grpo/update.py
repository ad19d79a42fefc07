"""The update of a step: micro-batches out of what the rollout left on the devices, gradients, the optimizer.

Every process brings its own groups, an equal number of them to every micro-batch; the programs run over the whole mesh.
The denominators are those of the whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from vcap_jax.grpo.advantages import GroupAdvantages
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.mismatch import Moments, mismatch_metrics
from vcap_jax.grpo.objective import Metrics, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.grpo.records import StepRollout
from vcap_jax.models.family import Features, Params, PromptBatch
from vcap_jax.parallel.sharding import Placement
from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.training.optimizer import TrainState

_METRIC_NAMES = {"clip_low": "clip/low", "clip_high": "clip/high"}

MicroBatch = tuple[PromptBatch, Features | None, CaptionBatch]
"""Prompts, visual features and captions of some groups on the devices."""


@dataclass(frozen=True)
class _Part:
    """The groups ``start`` to ``stop`` of a rollout batch, and their captions on the host."""

    batch: RolloutBatch
    start: int
    stop: int
    captions: CaptionBatch[np.ndarray]


@dataclass(frozen=True)
class StepUpdate:
    """Updates the policy with one step's captions.

    groups_per_batch: groups of this process that a rollout's device batch holds. max_completion_length: tokens of a
        caption at most.
    reference: the frozen reference policy's parameters, or None when beta is 0.
    rollout_weights: ``UpdatePrograms.rollout_weights`` if captions come from another engine than the JAX sampler.
    processes: how many bring groups.
    """

    config: GRPOConfig
    groups_per_batch: int
    max_completion_length: int
    programs: UpdatePrograms
    frozen: Params
    reference: Params | None
    placement: Placement
    rollout_weights: Callable[..., tuple[jax.Array, Moments]] | None
    processes: int = 1

    def __call__(
        self, state: TrainState, rollout: StepRollout, lengths: np.ndarray, advantages: GroupAdvantages
    ) -> tuple[TrainState, dict[str, float]]:
        """Does the step's updates. Returns the new state, and the updates' metrics; ``state`` is donated.

        rollout: this process's groups. lengths: [B, G] tokens, and advantages: of the groups of all processes, in the
        order of their places.
        """
        width = self._caption_width(int(lengths.max()))
        micro = list(self._parts(rollout, advantages, lengths, width))
        totals = self.placement.replicated(
            step_totals(jnp.asarray(lengths), jnp.asarray(advantages.contributes), len(micro))
        )
        reference = [self._logprobs(self.reference, part) for part in micro]
        weights, moments = self._rollout_weights(state.params, micro)
        old: list[jax.Array | None] = [None] * len(micro)
        if self.config.num_iterations > 1:
            old = [self._logprobs(state.params, part) for part in micro]
        shares: list[Metrics] = []
        for _ in range(self.config.num_iterations):
            gradients = self.programs.zeros(state.params)
            shares = []
            for part, before, anchor, weight in zip(micro, old, reference, weights, strict=True):
                prompt, features, captions = self._on_devices(part)
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

    def _parts(
        self, rollout: StepRollout, advantages: GroupAdvantages, lengths: np.ndarray, width: int
    ) -> Iterator[_Part]:
        size = self.config.groups_per_micro_batch // self.processes
        per_batch = self.groups_per_batch
        row_of = {record.place: row for row, record in enumerate(rollout.records)}
        tokens = np.stack([record.tokens[:, :width] for record in rollout.records])
        # None in every record or in none: a step has one engine.
        reported = [r.sampler_logprobs for r in rollout.records if r.sampler_logprobs is not None]
        sampler = np.stack(reported)[..., :width] if reported else None
        for batch in rollout.batches:
            # The last batch of a step may be short; its padding groups take no part.
            places = list(batch.places)
            rows = [row_of[place] for place in places]
            captions = CaptionBatch(
                tokens=_pad_rows(tokens[rows], per_batch),
                lengths=_pad_rows(lengths[places], per_batch),
                advantages=_pad_rows(np.asarray(advantages.advantages[places], np.float32), per_batch),
                contributes=_pad_rows(np.asarray(advantages.contributes[places]), per_batch),
                sampler_logprobs=None if sampler is None else _pad_rows(sampler[rows], per_batch),
            )
            for start in range(0, per_batch, size):
                if start >= batch.groups:
                    break
                cut = slice(start, start + size)
                yield _Part(batch, start, start + size, jax.tree.map(lambda x, cut=cut: x[cut], captions))

    def _on_devices(self, part: _Part) -> MicroBatch:
        """Made for each pass over the groups: kept, all parts of a step would hold the features a second time."""
        local, join = self.placement.local(), self.placement.join
        bounds = part.start, part.stop
        return (
            join(local.take(part.batch.prompt, *bounds)),
            join(local.take(part.batch.features, *bounds)),
            join(local.batch(part.captions)),
        )

    def _rollout_weights(
        self, params: Params, micro: Sequence[_Part]
    ) -> tuple[list[jax.Array | None], list[Moments]]:
        """Importance weights for captions of another engine than ours, and how far its numbers lie from ours."""
        if self.rollout_weights is None:
            return [None] * len(micro), []
        pairs = [self.rollout_weights(params, self.frozen, *self._on_devices(part)) for part in micro]
        return [weights for weights, _ in pairs], [moments for _, moments in pairs]

    def _logprobs(self, params: Params | None, part: _Part) -> jax.Array | None:
        if params is None:
            return None
        prompt, features, captions = self._on_devices(part)
        return self.programs.logprobs(params, self.frozen, prompt, features, captions.tokens)

    def _caption_width(self, longest: int) -> int:
        fitting = [bucket for bucket in self.config.caption_buckets if longest <= bucket]
        return min([*fitting, self.max_completion_length])


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    missing = rows - len(array)
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array
