"""Equality with the public PyTorch implementation on small random models, float32.

The default tests read the public model's answers from golden files; the ones marked ``live`` ask it again.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.live_reference import require_torch
from tests.models import parity
from tests.models.public_arrays import set_public_arrays
from tests.models.qwen3_5 import make_goldens
from tests.models.qwen3_5 import parity_cases as cases
from tests.models.qwen3_vl.parity_cases import PROMPTS
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_vl.inputs import EncodedPrompt

models = pytest.mark.parametrize("name", list(cases.MODELS))
prompts = pytest.mark.parametrize("case", list(PROMPTS))


@functools.cache
def golden(name: str) -> parity.Answers:
    return make_goldens.load(name)


@functools.cache
def our_model(name: str) -> Qwen35:
    config = cases.MODELS[name]
    model = Qwen35(config, rngs=nnx.Rngs(0), dtype=jnp.float32, param_dtype=jnp.float32)
    set_public_arrays(model, cases.weights(config, seed=1))
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


@pytest.mark.live
@models
def test_live_answers_and_golden_files_agree(name: str) -> None:
    require_torch()
    fresh = make_goldens.reference(name)
    parity.assert_fresh_answers_agree(fresh, our_answers(name), golden(name), our_prompts(name))
