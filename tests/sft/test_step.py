"""The supervised update: loss on the caption only, equal to the plain computation, however it is cut up."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.tiny_policy import VOCABULARY, tiny_model, tiny_prompts
from vcap_jax.models.qwen3_vl.inputs import PromptBatch
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.sft.step import SFTPrograms, TargetBatch, caption_losses
from vcap_jax.sft.targets import pad_captions

LONGEST = 6


def targets(groups: int = 2, per_group: int = 2, *, complete: bool = False) -> TargetBatch:
    """Captions of 3 and 5 tokens; the last group lacks its last one, unless complete."""
    rng = np.random.default_rng(0)
    captions = [
        [rng.integers(9, VOCABULARY, 3 + 2 * g).tolist() for g in range(per_group)] for _ in range(groups)
    ]
    if not complete:
        captions[-1].pop()
    return TargetBatch(*pad_captions(captions, LONGEST, groups=groups, per_group=per_group))


@functools.partial(jax.jit, static_argnums=0)
def _plain_logprobs(graphdef, params, joined: PromptBatch) -> jax.Array:
    model = nnx.merge(graphdef, params)
    return jax.nn.log_softmax(model.logits(model.hidden(joined, model.encode_vision(joined.vision))))


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
    graphdef, params = nnx.split(model)
    logprobs = np.asarray(_plain_logprobs(graphdef, params, joined))[0]
    return np.array([-logprobs[length - 1 + t, token] for t, token in enumerate(caption)])


def test_losses_are_those_of_each_caption_alone_after_its_prompt() -> None:
    """The second prompt is padded, and its captions of 3 and 5 tokens do not fill the chunks of 4."""
    model, prompts, batch = tiny_model(), tiny_prompts(2), targets(complete=True)
    graphdef, params = nnx.split(model)
    losses = np.asarray(jax.jit(lambda p: caption_losses(nnx.merge(graphdef, p), prompts, batch, 4))(params))
    assert losses.shape == (2, 2, LONGEST)
    for g in range(2):
        length = batch.lengths[1, g]
        # As long for both, so that one program serves them; what follows a caption changes nothing before it.
        plain = plain_losses(model, prompts, 1, batch.tokens[1, g, : LONGEST - 1])[:length]
        np.testing.assert_allclose(losses[1, g, :length], plain, rtol=2e-5, atol=2e-5)
        assert not losses[1, g, length:].any()


@pytest.mark.slow
def test_padding_carries_neither_loss_nor_gradient() -> None:
    model, prompts, batch = tiny_model(), tiny_prompts(2), targets()
    graphdef, params = nnx.split(model)
    noise = np.where(np.arange(LONGEST) < batch.lengths[..., None], batch.tokens, 11).astype(np.int32)

    @jax.jit
    @jax.value_and_grad
    def total(params, tokens):
        model = nnx.merge(graphdef, params)
        return caption_losses(model, prompts, TargetBatch(tokens, batch.lengths), None).sum()

    answers = [total(params, jnp.asarray(tokens)) for tokens in (batch.tokens, noise)]
    np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), answers[0][1], answers[1][1])


@pytest.fixture(scope="module")
def programs() -> SFTPrograms:
    return SFTPrograms(nnx.split(tiny_model())[0], optax.sgd(0.1), logprob_chunk=None)


def updated(programs: SFTPrograms, micro, steps: int = 1):
    placement = Placement.build(MeshConfig(fsdp=1))
    state = programs.initial_state(placement.state(nnx.split(tiny_model())[1]), placement)
    micro = [(placement.batch(prompt), placement.batch(batch)) for prompt, batch in micro]
    tokens = sum(int(batch.lengths.sum()) for _, batch in micro)
    measured = []
    for _ in range(steps):
        state, metrics = programs.update(state, nnx.State({}), micro, tokens)
        measured.append(float(metrics["nll"]))
    return state, measured


@pytest.mark.long
def test_a_step_does_not_depend_on_how_it_is_cut(programs) -> None:
    """Groups with fewer captions weigh by their tokens, in whichever micro-batch they stand."""
    prompts, batch = tiny_prompts(4), targets(groups=4)
    whole, loss = updated(programs, [(prompts, batch)])
    cut = [jax.tree.map(lambda x, s=s: x[s : s + 2], (prompts, batch)) for s in (2, 0)]
    parts, loss_of_parts = updated(programs, cut)
    assert loss[0] == pytest.approx(loss_of_parts[0], rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole.params, parts.params
    )


@pytest.mark.slow
def test_a_few_updates_lower_the_loss(programs) -> None:
    _, losses = updated(programs, [(tiny_prompts(4), targets(groups=4))], steps=16)
    assert losses[-1] < 0.7 * losses[0]
