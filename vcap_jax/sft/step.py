"""The supervised update: cross-entropy on captions, the captions of one picture sharing its prompt.

Same model, shared-prompt forward and optimizer programs as GRPO; only the objective differs. The layout is the
group's, [prompt | c1 | ... | cG], and not several samples in one row: visual prompts are long and captions short, so
what packed rows could save is padding alone: of a prompt of 8,000 tokens rounded up to a multiple of 1,024 on average
6%, of the caption, an eighth of the row, perhaps a third. A tenth of the FLOPs is not worth an attention pattern of
its own, and rows of single captions would compute a prompt of thousands of tokens again for each caption of it.
Instead a step's samples are ordered by the number of their captions and by size, so that those padded together are
alike (``SupervisedTraining``); ``positions/real`` in the metrics says what share of the computed positions was needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Int

from vcap_jax.models.family import CaptionModel, GraphDef, Params, PromptBatch
from vcap_jax.parallel.arrays import ArrayT
from vcap_jax.parallel.group_sharding import GroupShardedJit
from vcap_jax.training.logprobs import token_logprobs
from vcap_jax.training.optimizer import OptimizerPrograms, TrainState

Metrics = dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TargetBatch(Generic[ArrayT]):
    """Captions of B groups. lengths: the end token included, 0 for none."""

    tokens: Int[ArrayT, "B G T"]
    lengths: Int[ArrayT, "B G"]


def caption_losses(
    model: CaptionModel, prompt: PromptBatch, batch: TargetBatch, chunk: int | None
) -> jax.Array:
    """Negative log-likelihood (nats) of every caption token given prompt and caption so far: [B, G, T] float32.

    The prompt carries no loss; padding has 0. chunk: caption positions whose vocabulary logits exist at a time.
    """
    features = None if prompt.vision is None else model.encode_vision(prompt.vision)
    hidden = model.caption_hidden(prompt, features, batch.tokens)
    logprobs = token_logprobs(hidden, model.head(), batch.tokens, chunk=chunk)
    mask = jnp.arange(batch.tokens.shape[-1]) < batch.lengths[..., None]
    return jnp.where(mask, -logprobs, 0.0)


class SFTPrograms(OptimizerPrograms):
    """Jitted programs of supervised updates for one model definition.

    A frozen vision tower costs its forward alone: no gradient reaches it.
    """

    def __init__(
        self, graphdef: GraphDef, optimizer: optax.GradientTransformation, *, logprob_chunk: int | None
    ) -> None:
        super().__init__(optimizer)
        self._graphdef, self._chunk = graphdef, logprob_chunk
        self.accumulate = GroupShardedJit(self._accumulate, donate_argnums=(2,))

    def update(
        self,
        state: TrainState,
        frozen: Params,
        micro: Iterable[tuple[PromptBatch, TargetBatch]],
        tokens: int,
    ) -> tuple[TrainState, Metrics]:
        """One optimizer update (the state is donated) on the mean over the caption tokens of all micro-batches.

        tokens: how many they have together. Metrics, on the device: ``nll`` (nats per token), ``grad_norm``.
        """
        gradients, shares = self.zeros(state.params), []
        for prompt, batch in micro:
            gradients, share = self.accumulate(state.params, frozen, gradients, prompt, batch, float(tokens))
            shares.append(share)
        state, applied = self.apply(state, gradients)
        return state, {"nll": sum(shares[1:], shares[0]), **applied}

    def _accumulate(
        self,
        params: Params,
        frozen: Params,
        gradients: Params,
        prompt: PromptBatch,
        batch: TargetBatch,
        tokens: ArrayLike,
    ) -> tuple[Params, jax.Array]:
        """Adds a micro-batch's share of the step's gradient to ``gradients`` (donated); returns that of its loss."""

        def loss_fn(params: Params) -> jax.Array:
            model = nnx.merge(self._graphdef, params, frozen)
            return caption_losses(model, prompt, batch, self._chunk).sum() / tokens

        loss, new = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(jnp.add, gradients, new), loss
