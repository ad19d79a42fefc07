"""Equality with the public PyTorch implementation on small random models, float32.

The default tests read the public model's answers from golden files; the ones marked ``live`` ask it again.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.live_reference import require_torch
from tests.models.public_arrays import public_arrays, set_public_arrays
from tests.models.qwen3_vl import make_goldens
from tests.models.qwen3_vl import parity_cases as cases
from vcap_jax.kernels.attention import Seen
from vcap_jax.models.qwen3_vl.decoding import DecodeModel, apart, lay_out
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt, PromptBatch
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.weight_table import weight_map

LOGITS_TOLERANCE = 1e-4  # of the reference's largest logit
GRADIENT_TOLERANCE = 1e-3  # of each tensor's norm


models = pytest.mark.parametrize("name", list(cases.MODELS))
Answers = dict[str, np.ndarray]


@functools.cache
def golden(name: str) -> Answers:
    return make_goldens.load(name)


@functools.cache
def our_model(name: str) -> Qwen3VL:
    config = cases.MODELS[name]
    model = Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.float32, param_dtype=jnp.float32)
    set_public_arrays(model, cases.weights(config, seed=1))
    return model


def our_prompts(name: str) -> dict[str, EncodedPrompt]:
    config = cases.MODELS[name]
    return {
        case: cases.encoded_prompt(cases.raw_prompt(case, config), golden(name)[f"positions/{case}"])
        for case in cases.PROMPTS
    }


def loss_of(model: Qwen3VL, batch: PromptBatch) -> tuple[jax.Array, jax.Array]:
    """Next-token cross-entropy over the real tokens, and all logits."""
    logits = model.logits(model.hidden(batch, model.encode_vision(batch.vision)))
    real = jnp.arange(1, batch.tokens.shape[1]) < batch.lengths[:, None]
    logprobs = jax.nn.log_softmax(logits[:, :-1])
    chosen = jnp.take_along_axis(logprobs, batch.tokens[:, 1:, None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(real, chosen, 0)) / jnp.sum(real), logits


@functools.cache
def our_answers(name: str) -> Answers:
    """Our answers in the form of ``make_goldens.reference``; every prompt is a row of one padded batch."""
    model, prompts = our_model(name), our_prompts(name)
    graphdef, params = nnx.split(model)

    @jax.jit
    def generate(params: nnx.State, batch: PromptBatch) -> jax.Array:
        model = DecodeModel(graphdef, lay_out(graphdef, *apart(graphdef, params, nnx.State({}))))
        features, length = nnx.merge(graphdef, params).encode_vision(batch.vision), batch.tokens.shape[1]
        hidden, prompt_cache = model.prefill(batch, features, chunk=length)
        groups, seen = len(prompt_cache.lengths), Seen.first(prompt_cache.lengths, length)
        first = jnp.argmax(model.logits(hidden), -1).astype(jnp.int32)[:, None]

        def step(carry: tuple, i: jax.Array) -> tuple[tuple, jax.Array]:
            tokens, cache = carry
            visible = jnp.broadcast_to(jnp.arange(cases.NEW_TOKENS) <= i, (groups, cases.NEW_TOKENS))
            own = Seen(visible, *(jnp.full((groups, 1), n) for n in (i + 1, 0)), start=0)
            hidden, cache = model.decode(
                tokens,
                model.rotations(jnp.full(groups, i), prompt_cache),
                seen,
                i,
                own,
                prompt_cache,
                cache,
            )
            return (jnp.argmax(model.logits(hidden), -1).astype(jnp.int32), cache), tokens

        sizes = {"groups": groups, "prompt_tokens": 1, "captions": 1, "caption_tokens": cases.NEW_TOKENS}
        cache = model.empty(**sizes)[1]
        return jax.lax.scan(step, (first, cache), jnp.arange(cases.NEW_TOKENS))[1]

    @jax.jit
    def differentiate(params: nnx.State, batch: PromptBatch) -> tuple:
        def loss(params: nnx.State) -> tuple[jax.Array, jax.Array]:
            return loss_of(nnx.merge(graphdef, params), batch)

        return jax.value_and_grad(loss, has_aux=True)(params)

    batch = cases.batch(list(prompts.values()), cases.MODELS[name])
    (loss, logits), gradients = differentiate(params, batch)
    out: Answers = {"loss": np.asarray(loss), "logits/batch": np.asarray(logits)}
    tokens = np.asarray(generate(params, batch))
    for row, (case, prompt) in enumerate(prompts.items()):
        out[f"logits/{case}"] = out["logits/batch"][row, : len(prompt.tokens)]
        out[f"generated/{case}"] = tokens[:, row, 0]
    for tensor, gradient in public_arrays(weight_map(cases.MODELS[name]), gradients).items():
        out[f"gradient/{tensor}"] = gradient
    return out


def assert_logits_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= LOGITS_TOLERANCE * np.abs(theirs).max()


def real_rows(name: str, stride: int = 1) -> np.ndarray:
    """[B, P / stride]: which positions of the padded batch hold a real token."""
    lengths = [len(prompt.tokens) for prompt in our_prompts(name).values()]
    return np.arange(0, max(lengths), stride) < np.array(lengths)[:, None]


@models
@pytest.mark.parametrize("case", list(cases.PROMPTS))
def test_logits_of_every_kind_of_prompt(name: str, case: str) -> None:
    assert_logits_close(our_answers(name)[f"logits/{case}"], golden(name)[f"logits/{case}"])


@models
def test_logits_of_a_padded_batch(name: str) -> None:
    real = real_rows(name, stride=5)
    ours = our_answers(name)["logits/batch"][:, ::5][:, : real.shape[1]]
    assert_logits_close(ours[real], golden(name)["logits/batch"][real])


@models
@pytest.mark.parametrize("case", list(cases.PROMPTS))
def test_greedy_generation_is_identical(name: str, case: str) -> None:
    np.testing.assert_array_equal(our_answers(name)[f"generated/{case}"], golden(name)[f"generated/{case}"])


@models
def test_gradient_of_every_tensor(name: str) -> None:
    ours, theirs = our_answers(name), golden(name)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    tensors = {key.removeprefix("gradient/") for key in ours if key.startswith("gradient/")}
    assert tensors == {key.removeprefix("norm/") for key in theirs if key.startswith("norm/")}
    for tensor in tensors:
        difference = cases.sketch(tensor, ours[f"gradient/{tensor}"]) - theirs[f"sketch/{tensor}"]
        assert np.linalg.norm(difference) <= GRADIENT_TOLERANCE * theirs[f"norm/{tensor}"], tensor


@pytest.mark.live
@models
def test_live_answers_and_golden_files_agree(name: str) -> None:
    require_torch()
    fresh, ours, stored = make_goldens.reference(name), our_answers(name), golden(name)
    for case in cases.PROMPTS:
        np.testing.assert_array_equal(fresh[f"positions/{case}"], stored[f"positions/{case}"])
        assert_logits_close(fresh[f"logits/{case}"], stored[f"logits/{case}"])
        assert_logits_close(ours[f"logits/{case}"], fresh[f"logits/{case}"])
        np.testing.assert_array_equal(ours[f"generated/{case}"], fresh[f"generated/{case}"])
    real = real_rows(name)
    assert_logits_close(ours["logits/batch"][:, : real.shape[1]][real], fresh["logits/batch"][real])
    tensors = [key for key in fresh if key.startswith("gradient/")]
    assert set(tensors) == {key for key in ours if key.startswith("gradient/")}
    for tensor in tensors:
        error = np.linalg.norm(ours[tensor] - fresh[tensor])
        assert error <= GRADIENT_TOLERANCE * np.linalg.norm(fresh[tensor]), tensor
