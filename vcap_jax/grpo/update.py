"""The update of a step: the micro-batches that the rollout left on the devices, gradients, the optimizer.

Every process brings its own groups, an equal number of them to every micro-batch; the programs run over the whole mesh.
The denominators are those of the whole step. What needs no scores, the log-probabilities that the update holds fixed,
is computed before them, while the judge works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from vcap_jax.grpo.advantages import GroupAdvantages
from vcap_jax.grpo.config import GRPOConfig
from vcap_jax.grpo.mismatch import Moments, mismatch_metrics
from vcap_jax.grpo.objective import Metrics, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.grpo.records import StepRollout
from vcap_jax.models.family import Features, Params, PromptBatch
from vcap_jax.models.widths import columns_for
from vcap_jax.parallel.host_memory import on_devices
from vcap_jax.parallel.sharding import Placement
from vcap_jax.rollout.engine import RolloutBatch
from vcap_jax.rollout.slots import SampledGroup
from vcap_jax.training.optimizer import TrainState

_METRIC_NAMES = {"clip_low": "clip/low", "clip_high": "clip/high"}

_Part = tuple[RolloutBatch, CaptionBatch[np.ndarray]]
"""A micro-batch, as far as this process brings it: its prompts on the devices, its captions on the host."""


@dataclass(frozen=True)
class FixedLogprobs:
    """Log-probabilities of a step's captions that its update takes as they are, [B, G, width] of each micro-batch.

    width: columns that captions are padded to. reference: of the reference policy, None where beta is 0. old: of the
    policy that drew them, None where it is the one that is updated.
    """

    width: int
    reference: Sequence[jax.Array | None]
    old: Sequence[jax.Array | None]


@dataclass(frozen=True)
class StepUpdate:
    """Updates the policy with one step's captions, and compares its log-probabilities with the rollout engine's.

    max_completion_length: tokens of a caption at most.
    reference: the frozen reference policy's parameters, or None when beta is 0. Where they lie in the host's memory,
        they come to the devices for as long as they are computed with.
    rollout_weights: ``UpdatePrograms.rollout_weights`` if captions come from another engine than the JAX sampler.
    """

    config: GRPOConfig
    max_completion_length: int
    programs: UpdatePrograms
    frozen: Params
    reference: Params | None
    placement: Placement
    rollout_weights: Callable[..., tuple[jax.Array, Moments]] | None

    def fixed(
        self,
        params: Params,
        batches: Sequence[RolloutBatch],
        groups: Sequence[SampledGroup],
        longest: int,
        *,
        ahead: bool = False,
        old: Mapping[int, np.ndarray] | None = None,
    ) -> FixedLogprobs:
        """What the update holds fixed of captions just drawn. It is begun on the devices, and not waited for.

        params: that drew them. batches, groups: of this process. longest: tokens of the longest caption of all
        processes, which call this together. ahead: whether other updates may come before this one. old: what is known
        of these captions under the weights that drew them, if those are gone: [G, columns] by index of the group.
        """
        width = self._caption_width(longest)
        tokens = {group.index: _as_wide(group.tokens, width, 0) for group in groups}
        drawing = params if ahead or self.config.num_iterations > 1 else None
        references, olds = [], []
        with on_devices(self.reference) as reference:
            for batch in batches:
                captions = _rows(batch, tokens)
                references.append(self._logprobs(reference, batch, captions))
                if old is None:
                    olds.append(self._logprobs(drawing, batch, captions))
                else:
                    # They may have been kept in other columns: ``caption_buckets`` may differ where a run goes on.
                    kept = {index: _as_wide(old[index], width, 0) for index in batch.indices}
                    olds.append(self._joined(_rows(batch, kept)))
        return FixedLogprobs(width, references, olds)

    def __call__(
        self,
        state: TrainState,
        rollout: StepRollout,
        lengths: np.ndarray,
        advantages: GroupAdvantages,
        fixed: FixedLogprobs,
    ) -> tuple[TrainState, dict[str, float]]:
        """Does the step's updates. Returns the new state, and the last update's metrics, of which a step without tokens
        to learn from has ``grad_norm`` alone; ``state`` is donated.

        rollout: this process's groups. lengths: [B, G] tokens, and advantages: of the groups of all processes, in the
        order of their indices. fixed: of these captions.
        """
        micro = list(self._parts(rollout, advantages, lengths, fixed.width))
        totals = self.placement.replicated(
            step_totals(jnp.asarray(lengths), jnp.asarray(advantages.contributes), len(micro))
        )
        weights, moments = self._rollout_weights(state.params, micro)
        shares: list[Metrics] = []
        compared: list[Moments] = []
        for _ in range(self.config.num_iterations):
            gradients = self.programs.zeros(state.params)
            shares, compared = [], []
            for part, before, anchor, weight in zip(micro, fixed.old, fixed.reference, weights, strict=True):
                batch = self._on_devices(part)
                gradients, share, new = self.programs.accumulate(
                    state.params, self.frozen, gradients, *batch, totals, before, anchor, weight
                )
                shares.append(share)
                if weight is None and batch[-1].sampler_logprobs is not None:
                    compared.append(self.programs.compare(new if before is None else before, batch[-1]))
            state, applied = self.programs.apply(state, gradients)
        # One transfer at the very end: until here nothing has waited for the device.
        shares, applied, moments = jax.device_get((shares, applied, moments or compared))
        summed = {key: float(sum(share[key] for share in shares)) for key in shares[0]}
        # Of no tokens there is nothing to tell, as where all groups are flat and dropped: sums of 0 are no means.
        measured = summed.items() if advantages.contributes.any() else ()
        row = {_METRIC_NAMES.get(key, key): value for key, value in measured}
        return state, row | {"grad_norm": float(applied["grad_norm"])} | mismatch_metrics(moments)

    def _parts(
        self, rollout: StepRollout, advantages: GroupAdvantages, lengths: np.ndarray, width: int
    ) -> Iterator[_Part]:
        row_of = {record.index: row for row, record in enumerate(rollout.records)}
        tokens = np.stack([_as_wide(record.tokens, width, 0) for record in rollout.records])
        # None in every record or in none: a step has one engine.
        reported = [r.sampler_logprobs for r in rollout.records if r.sampler_logprobs is not None]
        sampler = np.stack([_as_wide(of, width, np.nan) for of in reported]) if reported else None
        for batch in rollout.batches:
            # The last batch of a step may be short; its padding groups take no part.
            indices, size = list(batch.indices), batch.prompt.tokens.shape[0]
            rows = [row_of[index] for index in indices]
            captions = CaptionBatch(
                tokens=_pad_rows(tokens[rows], size),
                lengths=_pad_rows(lengths[indices], size),
                advantages=_pad_rows(np.asarray(advantages.advantages[indices], np.float32), size),
                contributes=_pad_rows(np.asarray(advantages.contributes[indices]), size),
                sampler_logprobs=None if sampler is None else _pad_rows(sampler[rows], size),
            )
            yield batch, captions

    def _on_devices(self, part: _Part) -> tuple[PromptBatch, Features | None, CaptionBatch]:
        """Prompts and features are there; captions are brought for each pass over the groups."""
        batch, captions = part
        return (*self._prompts(batch), self._joined(captions))

    def _prompts(self, batch: RolloutBatch) -> tuple[PromptBatch, Features | None]:
        return self._joined(batch.prompt), self._joined(batch.features)

    def _joined(self, tree: object) -> PyTree[jax.Array]:
        """A tree of this process's groups as its part of everybody's, on the devices of all."""
        return self.placement.join(self.placement.local().batch(tree))

    def _rollout_weights(
        self, params: Params, micro: Sequence[_Part]
    ) -> tuple[list[jax.Array | None], list[Moments]]:
        """Importance weights for captions of another engine than ours, and how far its numbers lie from ours."""
        if self.rollout_weights is None:
            return [None] * len(micro), []
        pairs = [self.rollout_weights(params, self.frozen, *self._on_devices(part)) for part in micro]
        return [weights for weights, _ in pairs], [moments for _, moments in pairs]

    def _logprobs(self, params: Params | None, batch: RolloutBatch, captions: np.ndarray) -> jax.Array | None:
        """Of captions [B, G, T] on the host; None without parameters."""
        if params is None:
            return None
        return self.programs.logprobs(params, self.frozen, *self._prompts(batch), self._joined(captions))

    def _caption_width(self, longest: int) -> int:
        fitting = [bucket for bucket in self.config.caption_buckets if longest <= bucket]
        return columns_for(min([*fitting, self.max_completion_length]))


def _as_wide(columns: np.ndarray, width: int, fill: float) -> np.ndarray:
    """[G, T] cut or filled up to ``width`` columns."""
    missing = max(0, width - columns.shape[1])
    return np.pad(columns[:, :width], [(0, 0), (0, missing)], constant_values=fill)


def _rows(batch: RolloutBatch, of: Mapping[int, np.ndarray]) -> np.ndarray:
    """What ``of`` has for the groups of a batch, with zeros for its padding groups."""
    return _pad_rows(np.stack([of[index] for index in batch.indices]), batch.prompt.tokens.shape[0])


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    missing = rows - len(array)
    return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array
