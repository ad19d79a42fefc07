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
from tests.models import parity
from tests.models.public_arrays import set_public_arrays
from tests.models.qwen3_5 import make_goldens
from tests.models.qwen3_5 import parity_cases as cases
from tests.models.qwen3_vl.parity_cases import PROMPTS, batch
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_5.text import DeltaNet, Entered
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt

# One of them, whose programs take long to compile, by default.
models = pytest.mark.parametrize("name", ["tied", pytest.param("untied", marks=pytest.mark.slow)])
prompts = pytest.mark.parametrize("case", list(PROMPTS))


def test_every_model_is_compared() -> None:
    assert set(cases.MODELS) == {"tied", "untied"}


@functools.cache
def golden(name: str) -> parity.Answers:
    return make_goldens.load(name)


@functools.cache
def our_model(name: str) -> Qwen35:
    config = cases.MODELS[name]
    model = Qwen35(config, rngs=nnx.Rngs(0), dtype=jnp.float32, param_dtype=jnp.float32)
    set_public_arrays(model, cases.weights(config))
    return model


def our_prompts(name: str) -> dict[str, EncodedPrompt]:
    return parity.encoded_prompts(cases.MODELS[name], golden(name))


@functools.cache
def our_answers(name: str) -> parity.Answers:
    return parity.answers(our_model(name), our_prompts(name))


@models
@prompts
def test_logits_of_every_kind_of_prompt(name: str, case: str) -> None:
    parity.assert_logits_close(our_answers(name)[f"logits/{case}"], golden(name)[f"logits/{case}"])


@models
def test_logits_of_a_padded_batch(name: str) -> None:
    real = parity.real_rows(our_prompts(name), stride=5)
    ours = our_answers(name)["logits/batch"][:, ::5][:, : real.shape[1]]
    parity.assert_logits_close(ours[real], golden(name)["logits/batch"][real])


@models
@prompts
def test_greedy_generation_is_identical(name: str, case: str) -> None:
    np.testing.assert_array_equal(our_answers(name)[f"generated/{case}"], golden(name)[f"generated/{case}"])


@models
def test_gradient_of_every_tensor(name: str) -> None:
    parity.assert_gradients_close(our_answers(name), golden(name))


@pytest.mark.slow
@models
def test_rounding_moves_no_logit_near_the_tolerance(name: str) -> None:
    """Or the comparison of two float32 implementations would hang on the machine's order of additions."""
    prompts, (graphdef, params) = our_prompts(name), nnx.split(our_model(name))
    inputs, noise = batch(list(prompts.values()), cases.MODELS[name]), np.random.default_rng(0)
    real = parity.real_rows(prompts)

    @jax.jit
    def logits(params: nnx.State) -> jax.Array:
        return parity.loss_of(nnx.merge(graphdef, params), inputs)[1]

    def rounded(array: jax.Array) -> jax.Array:
        return array * (1 + noise.uniform(-1, 1, array.shape) * 2.0**-24).astype(np.float32)

    exact = np.asarray(logits(params))[:, : real.shape[1]][real]
    for _ in range(10):
        moved = np.asarray(logits(jax.tree.map(rounded, params)))[:, : real.shape[1]][real]
        assert np.abs(moved - exact).max() <= parity.LOGITS_TOLERANCE / 3 * np.abs(exact).max()


@pytest.mark.live
@models
def test_live_answers_and_golden_files_agree(name: str) -> None:
    require_torch()
    fresh = make_goldens.reference(name)
    parity.assert_fresh_answers_agree(fresh, our_answers(name), golden(name), our_prompts(name))


@pytest.mark.live
@models
def test_live_bfloat16_is_as_near_to_float32_as_the_public_models_is(name: str) -> None:
    """Part by part, from the same rounded numbers: what becomes of the errors of parts in a whole model is chance."""
    torch = require_torch()

    def rounded(array: np.ndarray) -> np.ndarray:
        return np.array(jnp.asarray(array, jnp.bfloat16).astype(jnp.float32))

    config = cases.MODELS[name]
    arrays = {tensor: rounded(array) for tensor, array in cases.weights(config).items()}
    x = rounded(np.random.default_rng(0).standard_normal((1, 256, config.text.hidden_size)))
    model = Qwen35(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    set_public_arrays(model, arrays)
    layers, stacked = nnx.split(model.text.delta_layers)
    layer = nnx.merge(layers, jax.tree.map(lambda a: a[0], stacked))

    def recur(net: DeltaNet, entered: Entered) -> jax.Array:
        return net.sequence(entered, net.nothing(1, dtype=entered.channels.dtype))[0]

    ours = {
        "linear_attn": jax.jit(lambda x: layer.delta(x, recur))(jnp.asarray(x, jnp.bfloat16)),
        "mlp": jax.jit(lambda x: layer.mlp(x))(jnp.asarray(x, jnp.bfloat16)),
    }
    public = make_goldens.torch_model(config, arrays)

    def theirs(dtype: object) -> dict[str, np.ndarray]:
        parts, given = public.to(dtype).model.language_model.layers[0], torch.from_numpy(x).to(dtype)
        with torch.no_grad():
            return {part: getattr(parts, part)(given).float().numpy() for part in ours}

    exact, narrow = theirs(torch.float32), theirs(torch.bfloat16)
    for part, found in ours.items():
        error = np.linalg.norm(np.asarray(found, np.float32) - exact[part])
        assert error <= 1.05 * np.linalg.norm(narrow[part] - exact[part]), part
