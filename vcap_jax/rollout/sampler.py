"""The group sampler: one prefill per prompt, G captions decoded over the shared prefix.

Decoding runs in chunks of tokens, one device call each. Between two calls the host sees which captions have
ended and hands complete groups on, so their rewards are computed while other groups still decode. Shapes depend
only on the prompt bucket, G and the caption budget; nothing recompiles from step to step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vcap_jax.policy import Params
from vcap_jax.qwen3_vl.inputs import PromptBatch, VisualFeatures
from vcap_jax.rollout.sampling import SamplingConfig, candidate_keys, sample, seen_tokens, update_seen
from vcap_jax.rollout.vllm_config import VllmConfig


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How a step's captions are drawn (paper, Table training-config).

    group_size: captions per prompt, the paper's G.
    max_completion_length: tokens per caption at most, the end token included.
    groups_per_batch: groups decoded side by side in one program.
    chunk: tokens per device call; the host looks for finished groups in between.
    sampling: temperature, top-p, top-k, repetition penalty.
    engine: who draws the captions that are trained on: "jax" (this package's sampler) or "vllm" (a server that is
        given the weights of every step; references and held-out captions are the sampler's in both cases).
    vllm: the servers of the "vllm" engine and the correction for their numerics.
    """

    group_size: int = 8
    max_completion_length: int = 4096
    groups_per_batch: int = 4
    chunk: int = 64
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: Literal["jax", "vllm"] = "jax"
    vllm: VllmConfig = field(default_factory=VllmConfig)

    def __post_init__(self) -> None:
        for name in ("group_size", "max_completion_length", "groups_per_batch", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"rollout.{name} is {getattr(self, name)}; it must be at least 1")
        if self.engine not in ("jax", "vllm"):
            raise ValueError(f"rollout.engine is {self.engine!r}; it must be jax or vllm")
        if self.engine == "vllm" and not self.vllm.urls:
            raise ValueError(
                "rollout.engine is vllm but rollout.vllm.urls is empty; start a server with "
                "launch/serve_rollout.py and give its address"
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Everything a decode chunk reads and writes; donated from call to call.

    tokens: [B, G, T] int32, the captions so far, padded with the first end token.
    lengths: [B, G] int32, tokens written, the end token included.
    done: [B, G] bool.
    step: scalar int32, the next slot to write.
    logits: [B, G, V] float32, what slot ``step`` is sampled from.
    keys: [B, G] random keys, one per candidate.
    seen: [B, G, V] bool for the repetition penalty, or None when the penalty is 1.
    prompt_cache, caption_cache: the shared and the per-candidate keys and values.
    """

    tokens: jax.Array
    lengths: jax.Array
    done: jax.Array
    step: jax.Array
    logits: jax.Array
    keys: jax.Array
    seen: jax.Array | None
    caption_cache: Any


@dataclass(frozen=True)
class SampledGroup:
    """One finished group. index: its row in the batch; tokens: [G, T]; lengths: [G]; truncated: [G], True where
    the caption hit the budget without an end token (kept as it is: no end token is appended). logprobs: [G, T]
    float32 log-probabilities each token was drawn with, NaN beyond a caption's end; None from the JAX sampler,
    whose numerics are the trainer's."""

    index: int
    tokens: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    logprobs: np.ndarray | None = None


class GroupSampler:
    """Compiled prefill and decode programs for one model definition and one set of sampling rules.

    graphdef: static model definition (see ``vcap_jax.policy``).
    end_ids: tokens that end a caption; banned_ids: tokens that are never sampled (visual placeholders would
    break the next prompt that contains the caption).
    """

    def __init__(
        self, graphdef: Any, config: RolloutConfig, *, end_ids: Sequence[int], banned_ids: Sequence[int]
    ) -> None:
        if not end_ids:
            raise ValueError("no end-of-caption token: the tokenizer and generation_config.json name none")
        self.config = config
        self._graphdef = graphdef
        self._end = jnp.asarray(sorted(set(end_ids)), jnp.int32)
        self._banned = tuple(sorted(set(banned_ids)))
        self._start = jax.jit(self._start_program)
        # Each call reads one decode state and leaves the next in its place: the caches are never copied.
        self._decode = jax.jit(self._decode_program, donate_argnums=(3,))

    def stream(
        self,
        trainable: Params,
        frozen: Params,
        prompt: PromptBatch,
        features: VisualFeatures | None,
        *,
        seed: int,
        step: int,
        group_ids: Sequence[int],
    ) -> Iterator[SampledGroup]:
        """Yields every real group of ``prompt`` once, as soon as its last caption has ended.

        Draws depend on (seed, step, group id, candidate, position) alone, not on what shares the batch.
        """
        waiting = {row for row, length in enumerate(np.asarray(prompt.lengths)) if length > 0}
        ids = np.zeros(len(prompt.lengths), np.int32)
        ids[: len(group_ids)] = group_ids
        prompt_cache, state = self._start(trainable, frozen, prompt, features, seed, step, ids)
        budget = self.config.max_completion_length
        while waiting:
            state = self._decode(trainable, frozen, prompt_cache, state)
            done = np.asarray(state.done)
            at_budget = int(state.step) >= budget
            ready = sorted(row for row in waiting if at_budget or done[row].all())
            if ready:
                tokens, lengths = np.asarray(state.tokens), np.asarray(state.lengths)
                for row in ready:
                    yield SampledGroup(row, tokens[row].copy(), lengths[row].copy(), ~done[row])
                waiting.difference_update(ready)

    def _start_program(
        self,
        trainable: Params,
        frozen: Params,
        prompt: PromptBatch,
        features: VisualFeatures | None,
        seed: jax.Array,
        step: jax.Array,
        ids: jax.Array,
    ) -> tuple[Any, DecodeState]:
        config, model = self.config, nnx.merge(self._graphdef, trainable, frozen)
        groups, size, budget = prompt.tokens.shape[0], config.group_size, config.max_completion_length
        hidden, prompt_cache = model.prefill(prompt, features)
        logits = model.logits(hidden)
        seen = None
        if config.sampling.repetition_penalty != 1.0:
            prompt_seen = seen_tokens(prompt.tokens, prompt.lengths, logits.shape[-1])
            seen = jnp.repeat(prompt_seen[:, None], size, axis=1)
        state = DecodeState(
            tokens=jnp.full((groups, size, budget), self._end[0], jnp.int32),
            lengths=jnp.zeros((groups, size), jnp.int32),
            # Padding groups are done before they start, so that they never keep the loop running.
            done=jnp.broadcast_to((prompt.lengths == 0)[:, None], (groups, size)),
            step=jnp.zeros((), jnp.int32),
            logits=jnp.broadcast_to(logits[:, None], (groups, size, logits.shape[-1])),
            keys=candidate_keys(seed, step, ids, size),
            seen=seen,
            caption_cache=model.init_caption_cache(prompt_cache, size, budget),
        )
        return prompt_cache, state

    def _decode_program(
        self, trainable: Params, frozen: Params, prompt_cache: Any, state: DecodeState
    ) -> DecodeState:
        config, model = self.config, nnx.merge(self._graphdef, trainable, frozen)
        stop = jnp.minimum(state.step + config.chunk, config.max_completion_length)

        def unfinished(state: DecodeState) -> jax.Array:
            return (state.step < stop) & ~state.done.all()

        return jax.lax.while_loop(unfinished, partial(self._decode_token, model, prompt_cache), state)

    def _decode_token(self, model: Any, prompt_cache: Any, state: DecodeState) -> DecodeState:
        token = sample(
            state.logits, state.keys, state.step, self.config.sampling, seen=state.seen, banned=self._banned
        )
        token = jnp.where(state.done, self._end[0], token)
        written = jax.lax.dynamic_update_slice(state.tokens, token[..., None], (0, 0, state.step))
        seen = None if state.seen is None else update_seen(state.seen, token)
        hidden, cache = model.decode(token, state.step, prompt_cache, state.caption_cache)
        return DecodeState(
            tokens=written,
            lengths=jnp.where(state.done, state.lengths, state.step + 1),
            done=state.done | jnp.isin(token, self._end),
            step=state.step + 1,
            logits=model.logits(hidden),
            keys=state.keys,
            seen=seen,
            caption_cache=cache,
        )
