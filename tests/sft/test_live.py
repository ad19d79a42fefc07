"""The supervised loss and its gradient against the public PyTorch model, each caption computed on its own there."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.live_reference import require_torch
from tests.models.public_arrays import public_arrays, set_public_arrays
from tests.models.qwen3_vl import make_goldens
from tests.models.qwen3_vl import parity_cases as cases
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.weight_table import weight_map
from vcap_jax.sft.step import TargetBatch, caption_losses
from vcap_jax.sft.targets import pad_captions

NAME, PROMPTS = "tied", ("image", "video")
GRADIENT_TOLERANCE = 1e-3  # of each tensor's norm


@pytest.mark.live
def test_loss_and_gradient_are_those_of_the_public_model() -> None:
    torch = require_torch()
    config, rng = cases.MODELS[NAME], np.random.default_rng(0)
    raw = [cases.raw_prompt(case, config) for case in PROMPTS]
    captions = [[rng.integers(0, cases.IMAGE, n).astype(np.int32) for n in sizes] for sizes in ((3, 6), (5,))]

    theirs = make_goldens.torch_model(config, cases.weights(config, seed=1))
    total = 0.0
    for prompt, group in zip(raw, captions, strict=True):
        for caption in group:
            joined = dataclasses.replace(
                prompt,
                tokens=np.concatenate([prompt.tokens, caption]),
                types=np.concatenate([prompt.types, np.zeros(len(caption), prompt.types.dtype)]),
            )
            theirs.model.rope_deltas = None
            logits = theirs(**make_goldens.torch_inputs([joined])).logits[0]
            predictions = logits[len(prompt.tokens) - 1 : -1]
            labels = torch.from_numpy(caption.astype(np.int64))
            total = total + torch.nn.functional.cross_entropy(predictions, labels, reduction="sum")
    loss = total / sum(len(caption) for group in captions for caption in group)
    loss.backward()

    model = Qwen3VL(config, rngs=nnx.Rngs(0), dtype=jnp.float32, param_dtype=jnp.float32)
    set_public_arrays(model, cases.weights(config, seed=1))
    golden = make_goldens.load(NAME)
    prompts = [
        cases.encoded_prompt(prompt, golden[f"positions/{case}"])
        for prompt, case in zip(raw, PROMPTS, strict=True)
    ]
    batch = cases.batch(prompts, config)
    targets = TargetBatch(*pad_captions(captions, 8, groups=2, per_group=2))
    graphdef, params = nnx.split(model)

    @jax.jit
    @jax.value_and_grad
    def ours(params):
        losses = caption_losses(nnx.merge(graphdef, params), batch, targets, 4)
        return losses.sum() / targets.lengths.sum()

    value, gradients = ours(params)
    assert float(value) == pytest.approx(float(loss.detach()), rel=1e-5)
    parameters = dict(theirs.named_parameters())
    compared = 0
    for tensor, gradient in public_arrays(weight_map(config), gradients).items():
        expected = parameters[tensor].grad.numpy()
        error = np.linalg.norm(np.asarray(gradient) - expected)
        assert error <= GRADIENT_TOLERANCE * np.linalg.norm(expected) + 1e-7, tensor
        compared += 1
    assert compared > 30
