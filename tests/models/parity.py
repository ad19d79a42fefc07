"""Our answers in the form of the public model's, and their comparison, for families that read Qwen3-VL's prompts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.models.public_arrays import public_arrays
from tests.models.qwen3_vl import parity_cases as cases
from vcap_jax.kernels.attention import Seen
from vcap_jax.models.family import CaptionState, DecodeParams, GraphDef, Params, family_of
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch

LOGITS_TOLERANCE = 1e-4  # of the reference's largest logit
GRADIENT_TOLERANCE = 1e-3  # of each tensor's norm

Answers = dict[str, np.ndarray]


def encoded_prompts(config: cases.Sees, golden: Answers) -> dict[str, EncodedPrompt]:
    """All of ``PROMPTS`` with the public model's positions."""
    return {
        case: cases.encoded_prompt(cases.raw_prompt(case, config), golden[f"positions/{case}"])
        for case in cases.PROMPTS
    }


def loss_of(model: Any, batch: PromptBatch) -> tuple[jax.Array, jax.Array]:
    """Next-token cross-entropy over the real tokens, and all logits."""
    logits = model.logits(model.hidden(batch, model.encode_vision(batch.vision)))
    real = jnp.arange(1, batch.tokens.shape[1]) < batch.lengths[:, None]
    logprobs = jax.nn.log_softmax(logits[:, :-1])
    chosen = jnp.take_along_axis(logprobs, batch.tokens[:, 1:, None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(real, chosen, 0)) / jnp.sum(real), logits


def laid_out(graphdef: GraphDef, params: Params) -> DecodeParams:
    """All parameters of a model as decoding has them."""
    family = family_of(graphdef)
    return family.lay_out(graphdef, *family.apart(graphdef, params, nnx.State({})))


def answers(model: Any, prompts: dict[str, EncodedPrompt]) -> Answers:
    """In the form of ``make_goldens.answers_of``; every prompt is a row of one padded batch."""
    graphdef, params = nnx.split(model)
    family = model.family()

    @jax.jit
    def generate(params: nnx.State, batch: PromptBatch) -> jax.Array:
        decoder = family.decoder(graphdef, laid_out(graphdef, params))
        features, length = nnx.merge(graphdef, params).encode_vision(batch.vision), batch.tokens.shape[1]
        hidden, prompt = decoder.prefill(batch, features, chunk=length)
        groups = len(batch.lengths)
        first = jnp.argmax(decoder.logits(hidden), -1).astype(jnp.int32)[:, None]

        def step(carry: tuple, i: jax.Array) -> tuple[tuple, jax.Array]:
            tokens, state = carry
            visible = jnp.broadcast_to(jnp.arange(cases.NEW_TOKENS) <= i, (groups, cases.NEW_TOKENS))
            own = Seen(visible, *(jnp.full((groups, 1), n) for n in (i + 1, 0)), start=0)
            at, fixed = decoder.ahead(jnp.full((groups, 1), i), prompt)
            at = jax.tree.map(lambda a: a[:, 0], at)
            hidden, state = decoder.decode(tokens, at, fixed, i, own, prompt, state)
            return (jnp.argmax(decoder.logits(hidden), -1).astype(jnp.int32), state), tokens

        sizes = {"groups": groups, "prompt_tokens": 1, "captions": 1, "caption_tokens": cases.NEW_TOKENS}
        empty = decoder.empty(**sizes)[1]
        state = CaptionState(empty.columns, decoder.begin(prompt, 1))
        return jax.lax.scan(step, (first, state), jnp.arange(cases.NEW_TOKENS))[1]

    @jax.jit
    def differentiate(params: nnx.State, batch: PromptBatch) -> tuple:
        def loss(params: nnx.State) -> tuple[jax.Array, jax.Array]:
            return loss_of(nnx.merge(graphdef, params), batch)

        return jax.value_and_grad(loss, has_aux=True)(params)

    batch = cases.batch(list(prompts.values()), model.config)
    (loss, logits), gradients = differentiate(params, batch)
    out: Answers = {"loss": np.asarray(loss), "logits/batch": np.asarray(logits)}
    tokens = np.asarray(generate(params, batch))
    for row, (case, prompt) in enumerate(prompts.items()):
        out[f"logits/{case}"] = out["logits/batch"][row, : len(prompt.tokens)]
        out[f"generated/{case}"] = tokens[:, row, 0]
    for tensor, gradient in public_arrays(model.weight_map, gradients).items():
        out[f"gradient/{tensor}"] = gradient
    return out


def assert_logits_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= LOGITS_TOLERANCE * np.abs(theirs).max()


def real_rows(prompts: dict[str, EncodedPrompt], stride: int = 1) -> np.ndarray:
    """[B, P / stride]: which positions of the padded batch hold a real token."""
    lengths = [len(prompt.tokens) for prompt in prompts.values()]
    return np.arange(0, max(lengths), stride) < np.array(lengths)[:, None]


def assert_gradients_close(ours: Answers, golden: Answers) -> None:
    """Of every tensor, by the sketches and norms of a golden file."""
    np.testing.assert_allclose(ours["loss"], golden["loss"], rtol=1e-5)
    tensors = {key.removeprefix("gradient/") for key in ours if key.startswith("gradient/")}
    assert tensors == {key.removeprefix("norm/") for key in golden if key.startswith("norm/")}
    for tensor in tensors:
        difference = cases.sketch(tensor, ours[f"gradient/{tensor}"]) - golden[f"sketch/{tensor}"]
        assert np.linalg.norm(difference) <= GRADIENT_TOLERANCE * golden[f"norm/{tensor}"], tensor


def assert_fresh_answers_agree(
    fresh: Answers, ours: Answers, stored: Answers, prompts: dict[str, EncodedPrompt]
) -> None:
    """The public model's answers of this moment against ours and a golden file's."""
    for case in cases.PROMPTS:
        np.testing.assert_array_equal(fresh[f"positions/{case}"], stored[f"positions/{case}"])
        assert_logits_close(fresh[f"logits/{case}"], stored[f"logits/{case}"])
        assert_logits_close(ours[f"logits/{case}"], fresh[f"logits/{case}"])
        np.testing.assert_array_equal(ours[f"generated/{case}"], fresh[f"generated/{case}"])
    real = real_rows(prompts)
    assert_logits_close(ours["logits/batch"][:, : real.shape[1]][real], fresh["logits/batch"][real])
    tensors = [key for key in fresh if key.startswith("gradient/")]
    assert set(tensors) == {key for key in ours if key.startswith("gradient/")}
    for tensor in tensors:
        error = np.linalg.norm(ours[tensor] - fresh[tensor])
        assert error <= GRADIENT_TOLERANCE * np.linalg.norm(fresh[tensor]), tensor
