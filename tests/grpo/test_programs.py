"""The update programs: sharing the prompt, cutting the step into micro-batches and masking change nothing."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.tiny_policy import VOCABULARY, some_groups, tiny_model, tiny_prompts
from vcap_jax.grpo.objective import ObjectiveConfig, caption_mask, grpo_loss, step_totals
from vcap_jax.grpo.programs import CaptionBatch, UpdatePrograms
from vcap_jax.kernels.attention import Chunked, Dense
from vcap_jax.models.policy import split_model, vision_encoder
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisualFeatures
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.training.logprobs import token_logprobs

GROUPS, SIZE, TOKENS = 3, 3, 6
BLOCKS = Chunked(queries=10, scores=100, whole=0)
"""Several blocks of prompt and of captions."""


@pytest.fixture(scope="module")
def parts():
    return split_model(tiny_model(), ("visual",))


@pytest.fixture(scope="module")
def captions() -> CaptionBatch:
    rng = np.random.default_rng(1)
    contributes = np.ones((GROUPS, SIZE), bool)
    contributes[1, 2] = False
    advantages = np.where(contributes, rng.normal(size=(GROUPS, SIZE)), 0).astype(np.float32)
    return CaptionBatch(
        tokens=jnp.asarray(rng.integers(9, VOCABULARY, (GROUPS, SIZE, TOKENS)), jnp.int32),
        lengths=jnp.asarray(rng.integers(1, TOKENS + 1, (GROUPS, SIZE)), jnp.int32),
        advantages=jnp.asarray(advantages),
        contributes=jnp.asarray(contributes),
    )


@functools.cache
def programs(graphdef, **objective) -> UpdatePrograms:
    """The same for the same model, so that every test after the first finds its programs compiled."""
    config = ObjectiveConfig(**{"beta": 0.1, **objective})
    return UpdatePrograms(graphdef, config, optax.sgd(0.1), temperature=0.7, logprob_chunk=4)


def gradients(parts, captions, micro_size, weights=None):
    """weights: for captions of another engine."""
    graphdef, trainable, frozen = parts
    update, prompts = programs(graphdef), tiny_prompts(GROUPS)
    anchor = jax.tree.map(lambda x: x * 1.1, trainable)
    totals = step_totals(captions.lengths, captions.contributes, GROUPS // micro_size)
    features = vision_encoder(graphdef)(trainable, frozen, prompts)
    total, metrics = update.zeros(trainable), []
    for first in range(0, GROUPS, micro_size):
        prompt, feature, caption = (
            some_groups(x, first, first + micro_size) for x in (prompts, features, captions)
        )
        reference = update.logprobs(anchor, frozen, prompt, feature, caption.tokens)
        total, share, _ = update.accumulate(
            trainable, frozen, total, prompt, feature, caption, totals, None, reference, weights
        )
        metrics.append(share)
    return total, {key: sum(float(share[key]) for share in metrics) for key in metrics[0]}


def close(a, b, scale=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        size = max(np.abs(np.asarray(y)).max(), 1e-6)
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), atol=scale * size)


@pytest.fixture(scope="module")
def whole(parts, captions) -> tuple[Any, dict[str, float]]:
    """Gradients and metrics of a step in one piece."""
    return gradients(parts, captions, GROUPS)


def test_micro_batches_add_up(parts, captions, whole):
    gradient, metrics = whole
    cut, cut_metrics = gradients(parts, captions, 1)
    close(cut, gradient)
    assert cut_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)


def test_captions_of_another_engine_count_by_their_weights(parts, captions):
    """With weights of 0 only the reference policy is left, as without advantages."""
    weightless, _ = gradients(parts, captions, GROUPS, jnp.zeros(captions.tokens.shape))
    flat = replace(captions, advantages=jnp.zeros_like(captions.advantages))
    close(weightless, gradients(parts, flat, GROUPS)[0])


@pytest.fixture(scope="module")
def unshared(captions) -> tuple[float, Any]:
    """Loss and gradients with every caption behind its own copy of the prompt, through the plain causal forward
    with all scores in memory."""
    graphdef, trainable, frozen = split_model(tiny_model(kernel=Dense()), ("visual",))
    drawn = np.asarray(captions.tokens)
    prompts = tiny_prompts(GROUPS)
    anchor = jax.tree.map(lambda x: x * 1.1, trainable)
    config = ObjectiveConfig(beta=0.1)

    def logprobs(params):
        model = nnx.merge(graphdef, params, frozen)
        features = model.encode_vision(prompts.vision)
        return jnp.stack([of_group(model, features, row) for row in range(GROUPS)])

    def of_group(model, features, row):
        length = int(prompts.lengths[row])
        steps = np.arange(TOKENS) + prompts.positions[row, :, :length].max() + 1
        positions = np.concatenate([prompts.positions[row, :, :length], np.tile(steps, (3, 1))], axis=1)
        visual = np.concatenate([prompts.visual_index[row, :length], np.full(TOKENS, -1)])
        copies = functools.partial(np.repeat, repeats=SIZE, axis=0)
        joined = PromptBatch(
            np.concatenate([copies(prompts.tokens[row : row + 1, :length]), drawn[row]], axis=1),
            copies(positions[None]),
            np.full(SIZE, length + TOKENS),
            copies(visual[None]),
            None,
        )
        seen = VisualFeatures(
            jnp.repeat(features.embeddings[row : row + 1], SIZE, axis=0),
            jnp.repeat(features.deepstack[row : row + 1], SIZE, axis=0),
        )
        hidden = model.hidden(joined, seen)[:, length - 1 : -1]
        return token_logprobs(hidden, model.head(), drawn[row], temperature=0.7)

    def loss(params):
        mask = caption_mask(captions.lengths, captions.contributes, TOKENS)
        totals = step_totals(captions.lengths, captions.contributes)
        new, old = logprobs(params), logprobs(anchor)
        return grpo_loss(new, captions.advantages, mask, totals, config, reference=old)[0]

    value, gradient = jax.jit(jax.value_and_grad(loss))(trainable)
    return float(value), gradient


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"kernel": BLOCKS, "remat": "attention"}, marks=pytest.mark.slow),
    ],
    ids=["whole", "blocks, attention kept"],
)
def test_shared_prompt_equals_the_unshared_computation(settings, captions, unshared):
    """Uneven prompts and captions, one of them masked: whatever the kernel, and whatever is computed twice."""
    parts = split_model(tiny_model(**settings), ("visual",))
    gradient, metrics = gradients(parts, captions, GROUPS)
    value, expected = unshared
    # Advantages around zero times ratios of one: what is left of the sum has the rounding of its terms.
    assert metrics["loss"] == pytest.approx(value, rel=1e-5, abs=2e-6)
    # Other products in another order, in float32: 1.1e-5 of the largest on one of the processors this was run on.
    close(gradient, expected, scale=3e-5)


def test_logits_of_a_chunk_of_positions_exist_at_a_time(parts, captions):
    """Forward and backward: of [captions * tokens, vocabulary] there is never more than a chunk."""
    graphdef, trainable, frozen = parts
    update, prompts = programs(graphdef, beta=0.0), tiny_prompts(GROUPS)
    features = vision_encoder(graphdef)(trainable, frozen, prompts)
    totals = step_totals(captions.lengths, captions.contributes)

    def arrays(jaxpr):
        for equation in jaxpr.eqns:
            yield from (var.aval for var in equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from arrays(inner)

    program = update.accumulate.trace(
        trainable, frozen, trainable, prompts, features, captions, totals, None, None
    )
    jaxpr = program.jaxpr.jaxpr
    over_vocabulary = [x.shape for x in arrays(jaxpr) if x.ndim > 1 and x.shape[-1] == VOCABULARY]
    chunk = (GROUPS, SIZE, 4, VOCABULARY)
    assert chunk in over_vocabulary
    assert max(map(np.prod, over_vocabulary)) == np.prod(chunk)


def test_gradients_add_up_without_the_host(parts, captions):
    """Micro-batch after micro-batch, nothing is sent to the devices (what is fetched, a CPU cannot tell)."""
    graphdef, trainable, frozen = parts
    update, placed = programs(graphdef), jax.device_put(tiny_prompts(GROUPS))
    features = vision_encoder(graphdef)(trainable, frozen, placed)
    totals = step_totals(captions.lengths, captions.contributes)
    reference = update.logprobs(trainable, frozen, placed, features, captions.tokens)
    total, frozen = update.zeros(trainable), jax.device_put(frozen)
    jax.block_until_ready((features, totals, total, reference))
    with jax.transfer_guard("disallow"):
        for _ in range(2):
            total, metrics, _ = update.accumulate(
                trainable, frozen, total, placed, features, captions, totals, None, reference
            )
    assert np.isfinite(float(metrics["loss"]))


def test_masked_captions_have_no_influence(parts, captions, whole):
    tokens = captions.tokens.at[1, 2].set(9)
    after, _ = gradients(
        parts, CaptionBatch(tokens, captions.lengths, captions.advantages, captions.contributes), GROUPS
    )
    close(whole[0], after, scale=1e-7)


def test_only_the_trainable_part_moves(parts, whole):
    graphdef, trainable, frozen = parts
    assert all("visual" not in ".".join(map(str, path)) for path, _ in nnx.to_flat_state(trainable))
    assert all("visual" in ".".join(map(str, path)) for path, _ in nnx.to_flat_state(frozen))
    update = programs(graphdef)
    state = update.initial_state(trainable, Placement.build(MeshConfig(fsdp=1)))
    state, applied = update.apply(state, whole[0])
    assert int(state.step) == 1
    assert float(applied["grad_norm"]) > 0
    # The starting parameters were copied, not donated: they still anchor the KL term.
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(trainable))


@pytest.mark.parametrize(
    ("frozen", "message"), [(("vision",), "no parameter path"), (("visual", "text"), "nothing to train")]
)
def test_what_cannot_be_frozen_is_refused(frozen, message):
    with pytest.raises(ValueError, match=message):
        split_model(tiny_model(), frozen)
