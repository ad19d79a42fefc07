"""The compiled programs of a GRPO update: features, log-probabilities, gradients of a micro-batch, the optimizer.

A step is: visual features once per group; per micro-batch of groups the reference policy's log-probabilities and
the gradient of the policy's, added up on the device; one optimizer update. The prompt of a group is computed once
for all its captions (``CaptionModel.caption_hidden``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Bool, Float, Int

from vcap_jax.grpo.mismatch import Moments, mismatch_moments
from vcap_jax.grpo.objective import (
    Metrics,
    ObjectiveConfig,
    StepTotals,
    caption_mask,
    grpo_loss,
    truncated_importance_weights,
)
from vcap_jax.grpo.sampled_logprobs import sampled_logprobs
from vcap_jax.models.family import Features, GraphDef, Params, PromptBatch
from vcap_jax.parallel.arrays import ArrayT
from vcap_jax.parallel.group_sharding import GroupShardedJit
from vcap_jax.rollout.config import RolloutConfig
from vcap_jax.training.logprobs import token_statistics
from vcap_jax.training.optimizer import OptimizerPrograms


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CaptionBatch(Generic[ArrayT]):
    """The captions of B groups and what the update needs to know of them.

    lengths: the end token included. contributes: see ``advantages.GroupAdvantages``.
    sampler_logprobs: of the rollout engine (``SampledGroup.logprobs``), NaN where unknown; None where it gave none.
    NumPy arrays on the host, JAX arrays on the devices.
    """

    tokens: Int[ArrayT, "B G T"]
    lengths: Int[ArrayT, "B G"]
    advantages: Float[ArrayT, "B G"]
    contributes: Bool[ArrayT, "B G"]
    sampler_logprobs: Float[ArrayT, "B G T"] | None = None


class UpdatePrograms(OptimizerPrograms):
    """Jitted programs for one model definition; all methods are pure functions of their arguments.

    temperature: the sampling temperature; log-probabilities are those of logits / temperature.
    logprob_chunk: positions whose vocabulary logits exist at a time.
    """

    def __init__(
        self,
        graphdef: GraphDef,
        objective: ObjectiveConfig,
        optimizer: optax.GradientTransformation,
        *,
        temperature: float,
        logprob_chunk: int,
    ) -> None:
        super().__init__(optimizer)
        self._graphdef = graphdef
        self._objective = objective
        self._temperature = temperature
        self._chunk = logprob_chunk
        self.logprobs = GroupShardedJit(self._logprobs)
        self.accumulate = GroupShardedJit(self._accumulate, donate_argnums=(2,))
        self.compare = GroupShardedJit(self._compare)

    def _statistics(
        self,
        params: Params,
        frozen: Params,
        prompt: PromptBatch,
        features: Features | None,
        tokens: jax.Array,
        *,
        with_entropy: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        model = nnx.merge(self._graphdef, params, frozen)
        hidden = model.caption_hidden(prompt, features, tokens)
        return token_statistics(
            hidden,
            model.head(),
            tokens,
            temperature=self._temperature,
            chunk=self._chunk,
            with_entropy=with_entropy,
        )

    def _logprobs(
        self,
        params: Params,
        frozen: Params,
        prompt: PromptBatch,
        features: Features | None,
        tokens: jax.Array,
    ) -> jax.Array:
        """[B, G, T] float32 log-probabilities of ``tokens`` (the old or the reference policy's)."""
        return self._statistics(params, frozen, prompt, features, tokens, with_entropy=False)[0]

    def rollout_weights(
        self, rollout: RolloutConfig, banned: Sequence[int]
    ) -> Callable[..., tuple[jax.Array, Moments]]:
        """A jitted function (params, frozen, prompt, features, captions) -> (weights, moments) for captions of
        another engine: importance weights [B, G, T] or [B, G, 1] (see ``VllmConfig``) from the trainer's and the
        engine's log-probabilities under the sampling rules of ``rollout``, and what ``mismatch_metrics`` takes.

        banned: token ids that were never drawn.
        """

        def program(
            params: Params,
            frozen: Params,
            prompt: PromptBatch,
            features: Features | None,
            batch: CaptionBatch,
        ) -> tuple[jax.Array, Moments]:
            model = nnx.merge(self._graphdef, params, frozen)
            trainer = sampled_logprobs(
                model.caption_hidden(prompt, features, batch.tokens),
                model.head(),
                batch.tokens,
                prompt.tokens,
                prompt.lengths,
                rollout.sampling,
                banned=banned,
                # The rules hold several arrays of a chunk's scores where plain log-probabilities hold one.
                chunk=max(self._chunk // 4, 1),
            )
            sampler = batch.sampler_logprobs
            assert sampler is not None  # the captions are another engine's, which says what it drew with
            mask = caption_mask(batch.lengths, batch.contributes, batch.tokens.shape[-1])
            cap, level = rollout.vllm.importance_cap, rollout.vllm.importance_level
            weights = truncated_importance_weights(trainer, sampler, mask, cap=cap, level=level)
            return weights, mismatch_moments(trainer, sampler, mask, cap=cap, level=level)

        return GroupShardedJit(program)

    def _accumulate(
        self,
        params: Params,
        frozen: Params,
        gradients: Params,
        prompt: PromptBatch,
        features: Features | None,
        batch: CaptionBatch,
        totals: StepTotals,
        old: jax.Array | None,
        reference: jax.Array | None,
        rollout_weights: jax.Array | None = None,
    ) -> tuple[Params, Metrics, jax.Array]:
        """Adds one micro-batch's share of the step's gradient to ``gradients`` (donated); returns its metrics, and the
        log-probabilities [B, G, T] that it has computed for the loss."""

        def loss_fn(params: Params) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
            new, entropy = self._statistics(params, frozen, prompt, features, batch.tokens, with_entropy=True)
            mask = caption_mask(batch.lengths, batch.contributes, batch.tokens.shape[-1])
            loss, metrics = grpo_loss(
                new,
                batch.advantages,
                mask,
                totals,
                self._objective,
                old=old,
                reference=reference,
                rollout_weights=rollout_weights,
                entropy=jax.lax.stop_gradient(entropy),
            )
            return loss, (metrics | {"loss": loss}, new)

        (_, (metrics, new)), new_gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return jax.tree.map(jnp.add, gradients, new_gradients), metrics, new

    def _compare(self, drew: jax.Array, batch: CaptionBatch) -> Moments:
        """What ``mismatch_metrics`` takes of captions of the JAX sampler. drew: [B, G, T] log-probabilities of the
        policy that drew them, as the trainer has them. A program of its own: as a part of the gradient's, XLA would
        fuse, and round, some of that otherwise."""
        assert batch.sampler_logprobs is not None  # or there is nothing to compare
        mask = caption_mask(batch.lengths, batch.contributes, batch.tokens.shape[-1])
        return mismatch_moments(drew, batch.sampler_logprobs, mask)
