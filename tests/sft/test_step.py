"""The supervised update: loss on the caption only, equal to the plain computation, however it is cut up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.tiny_policy import VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.qwen3_vl.inputs import PromptBatch
from vcap_jax.sft.step import SFTPrograms, TargetBatch, caption_losses
from vcap_jax.sft.targets import pad_captions
from vcap_jax.sharding import MeshConfig, Placement

LONGEST = 6


def targets(groups: int = 2, per_group: int = 2) -> TargetBatch:
    """The last group lacks its last caption."""
    rng = np.random.default_rng(0)
    captions = [
        [rng.integers(9, VOCABULARY, rng.integers(2, LONGEST)).tolist() for _ in range(per_group)]
        for _ in range(groups)
    ]
    captions[-1].pop()
    return TargetBatch(*pad_captions(captions, LONGEST, groups=groups, per_group=per_group))


def plain_losses(model, prompt: PromptBatch, row: int, caption: np.ndarray) -> np.ndarray:
    """Prompt and caption as one unpadded sequence, computed the way a textbook would."""
    length = int(prompt.lengths[row])
    start = int(prompt.positions[row, :, :length].max()) + 1
    joined = PromptBatch(
        tokens=np.concatenate([prompt.tokens[row, :length], caption])[None],
        positions=np.concatenate(
            [prompt.positions[row, :, :length], np.tile(start + np.arange(len(caption)), (3, 1))], axis=1
        )[None].astype(np.int32),
        lengths=np.array([length + len(caption)], np.int32),
        visual_index=np.concatenate([prompt.visual_index[row, :length], np.full(len(caption), -1, np.int32)])[
            None
        ],
        vision=jax.tree.map(lambda x: x[row : row + 1], prompt.vision),
    )
    hidden = model.hidden(joined, model.encode_vision(joined.vision))
    logprobs = np.asarray(jax.nn.log_softmax(model.logits(hidden)))[0]
    return np.array([-logprobs[length - 1 + t, token] for t, token in enumerate(caption)])


@pytest.mark.parametrize("chunk", [None, 4])
def test_losses_are_those_of_each_caption_alone_after_its_prompt(chunk) -> None:
    model, prompts, batch = tiny_model(), tiny_prompts(2), targets()
    losses = np.asarray(caption_losses(model, prompts, jax.tree.map(jnp.asarray, batch), chunk))
    assert losses.shape == (2, 2, LONGEST)
    for b in range(2):
        for g in range(2):
            length = batch.lengths[b, g]
            plain = plain_losses(model, prompts, b, batch.tokens[b, g, :length])
            np.testing.assert_allclose(losses[b, g, :length], plain, rtol=2e-5, atol=2e-5)
            assert not losses[b, g, length:].any()


def test_padding_carries_neither_loss_nor_gradient() -> None:
    model, prompts, batch = tiny_model(), tiny_prompts(2), targets()
    graphdef, params = nnx.split(model)
    noise = np.where(np.arange(LONGEST) < batch.lengths[..., None], batch.tokens, 11).astype(np.int32)
    answers = [
        jax.value_and_grad(
            lambda p, t=tokens: caption_losses(
                nnx.merge(graphdef, p), prompts, TargetBatch(t, jnp.asarray(batch.lengths)), None
            ).sum()
        )(params)
        for tokens in (jnp.asarray(batch.tokens), jnp.asarray(noise))
    ]
    np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), answers[0][1], answers[1][1])


def updated(micro, steps: int = 1):
    graphdef, params = nnx.split(tiny_model())
    programs = SFTPrograms(graphdef, optax.sgd(0.1), logprob_chunk=None)
    state = programs.initial_state(params, Placement.build(MeshConfig(fsdp=1)))
    tokens = sum(int(batch.lengths.sum()) for _, batch in micro)
    measured = []
    for _ in range(steps):
        state, metrics = programs.update(state, nnx.State({}), micro, tokens)
        measured.append(float(metrics["nll"]))
    return state, measured


def test_a_step_does_not_depend_on_how_it_is_cut() -> None:
    """Groups with fewer captions weigh by their tokens, in whichever micro-batch they stand."""
    prompts, batch = tiny_prompts(4), targets(groups=4)
    whole, loss = updated([(prompts, batch)])
    cut = [jax.tree.map(lambda x, s=s: x[s : s + 2], (prompts, batch)) for s in (2, 0)]
    parts, loss_of_parts = updated(cut)
    assert loss[0] == pytest.approx(loss_of_parts[0], rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole.params, parts.params
    )


def test_a_few_updates_lower_the_loss() -> None:
    _, losses = updated([(tiny_prompts(2), targets())], steps=12)
    assert losses[-1] < 0.7 * losses[0]
