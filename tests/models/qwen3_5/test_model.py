"""The group forward against the plain one, and prefill and decoding against both."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.kernels.attention.new_tokens import PlainParts, first_columns
from tests.kernels.native.compiler import needs_compiler
from tests.models.parity import laid_out
from tests.models.qwen3_5 import parity_cases as cases
from vcap_jax.kernels.attention import Chunked, Dense, Kernel, Paired
from vcap_jax.kernels.attention.native import Native
from vcap_jax.models.family import CaptionState
from vcap_jax.models.qwen3_5.decoding import DecodeModel
from vcap_jax.models.qwen3_5.model import Qwen35
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisualFeatures

CONFIG = cases.MODELS["untied"]
GROUPS, PROMPT, VISUAL, GROUP, TOKENS = 3, 9, 4, 2, 4
REAL = slice(0, 2)  # the last group is padding


@functools.cache
def model(**settings: Any) -> Qwen35:
    made = Qwen35(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.float32, **settings)
    # As drawn, all decays are equal and the norms do nothing.
    for path, param in nnx.to_flat_state(nnx.state(made, nnx.Param)):
        if path[-1] in ("scale", "log_rate", "rate_bias"):
            noise = np.random.default_rng(len(str(path))).standard_normal(param.shape).astype(np.float32)
            param.set_value(param.get_value() + 0.3 * noise)
    return made


def prompts() -> PromptBatch:
    """A full prompt, a padded one, and a padding group; padding holds noise."""
    rng = np.random.default_rng(0)
    visual_index = np.full((GROUPS, PROMPT), -1, np.int32)
    visual_index[0, 2:6] = [0, 1, 2, 3]
    visual_index[1, 1:3] = [2, 3]
    return PromptBatch(
        tokens=rng.integers(0, cases.VOCABULARY, (GROUPS, PROMPT)).astype(np.int32),
        positions=rng.integers(0, 30, (GROUPS, 3, PROMPT)).astype(np.int32),
        lengths=np.array([9, 5, 0], np.int32),
        visual_index=visual_index,
        vision=None,
    )


def features() -> VisualFeatures:
    shape = (GROUPS, VISUAL, CONFIG.text.hidden_size)
    embeddings = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return VisualFeatures(embeddings, embeddings[:, None][:, :0])


def captions() -> np.ndarray:
    return np.random.default_rng(2).integers(0, cases.VOCABULARY, (GROUPS, GROUP, TOKENS)).astype(np.int32)


def unshared(model: Qwen35, features: VisualFeatures) -> jax.Array:
    """What ``caption_hidden`` must equal: each prompt joined with each caption, run on its own."""
    batch, joined = prompts(), []
    for row in range(GROUPS):
        length = batch.lengths[row]
        start = batch.positions[row, :, :length].max(initial=-1) + 1
        for caption in captions()[row]:
            tokens, positions = np.zeros(PROMPT + TOKENS, np.int32), np.zeros((3, PROMPT + TOKENS), np.int32)
            index = np.full(PROMPT + TOKENS, -1, np.int32)
            tokens[: length + TOKENS] = [*batch.tokens[row, :length], *caption]
            positions[:, :length] = batch.positions[row, :, :length]
            positions[:, length : length + TOKENS] = start + np.arange(TOKENS)
            index[:length] = batch.visual_index[row, :length]
            joined.append((tokens, positions, length + TOKENS, index))
    tokens, positions, lengths, index = map(np.stack, zip(*joined, strict=True))
    repeated = jax.tree.map(lambda a: jnp.repeat(a, GROUP, axis=0), features)
    hidden = model.hidden(PromptBatch(tokens, positions, lengths, index, None), repeated)
    rows = np.maximum(lengths - TOKENS - 1, 0)[:, None] + np.arange(TOKENS)
    chosen = jnp.take_along_axis(hidden, rows[..., None], axis=1)
    return chosen.reshape(GROUPS, GROUP, TOKENS, -1)


def shared(model: Qwen35, features: VisualFeatures) -> jax.Array:
    return model.caption_hidden(prompts(), features, captions())


@functools.cache
def hidden(forward: Callable) -> np.ndarray:
    """Hidden states alone: without a backward pass there is much less to compile."""
    graphdef, params = nnx.split(model())
    run = jax.jit(lambda params, features: forward(nnx.merge(graphdef, params), features))
    return np.asarray(run(params, features()))


@functools.cache
def value_and_gradients(forward: Callable, remat: str = "none") -> tuple[np.ndarray, Any]:
    """Hidden states, and gradients of a random function of those of real groups, to parameters and features."""
    weights = np.random.default_rng(3).standard_normal((GROUPS, GROUP, TOKENS, CONFIG.text.hidden_size))
    weights[REAL.stop :] = 0
    graphdef, params = nnx.split(model(remat=remat))

    def loss(params: nnx.State, features: VisualFeatures) -> tuple[jax.Array, jax.Array]:
        hidden = forward(nnx.merge(graphdef, params), features)
        return jnp.sum(hidden * weights.astype(np.float32)), hidden

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, hidden), gradients = run(params, features())
    return np.asarray(hidden), gradients


def assert_same_gradients(ours: Any, reference: Any) -> None:
    paths = jax.tree_util.tree_flatten_with_path(ours)[0]
    for (path, gradient), expected in zip(paths, jax.tree.leaves(reference), strict=True):
        scale = np.abs(expected).max(initial=0)
        np.testing.assert_allclose(
            gradient, expected, atol=1e-5 * scale + 1e-12, err_msg=jax.tree_util.keystr(path)
        )


def test_shared_prefix_equals_every_caption_on_its_own() -> None:
    ours, reference = hidden(shared), hidden(unshared)
    np.testing.assert_allclose(ours[REAL], reference[REAL], rtol=1e-5, atol=1e-5)
    assert np.isfinite(ours).all()


@pytest.mark.slow
def test_gradients_through_the_memories_of_the_shared_prefix() -> None:
    ours = value_and_gradients(shared)[1]
    assert_same_gradients(ours, value_and_gradients(unshared)[1])
    assert np.abs(ours[1].embeddings).max() > 0


@pytest.mark.long
@pytest.mark.parametrize("remat", ["layer", "dots_attention"])
def test_what_is_computed_again_is_the_same(remat: str) -> None:
    ours, gradients = value_and_gradients(shared, remat)
    np.testing.assert_allclose(ours, value_and_gradients(shared)[0], rtol=1e-5, atol=1e-5)
    assert_same_gradients(gradients, value_and_gradients(shared)[1])


@pytest.mark.parametrize(
    ("chunk", "kernel"),
    [
        pytest.param(PROMPT, Dense(), marks=pytest.mark.slow),
        (4, Dense()),
        pytest.param(4, Chunked(queries=6, scores=36, whole=0), marks=pytest.mark.slow),
        pytest.param(4, Native(), marks=[needs_compiler, pytest.mark.slow]),
        pytest.param(4, Paired(sequences=Dense(), tokens=PlainParts()), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_prefill_and_decode_equal_the_training_forward(chunk: int, kernel: Kernel) -> None:
    """In one go or in chunks: 9 prompt tokens make two whole chunks and a padded one, and a prompt of 5 ends inside
    the second."""
    graphdef, params = nnx.split(model(kernel=kernel))

    @jax.jit
    def rollout(params: nnx.State) -> jax.Array:
        decoder = DecodeModel(graphdef, laid_out(graphdef, params))
        first, prompt = decoder.prefill(prompts(), features(), chunk=chunk)

        def step(state: Any, x: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
            i, tokens = x
            own = first_columns(i + 1, GROUPS, GROUP, TOKENS)
            rotation, seen = decoder.ahead(jnp.full((GROUPS, 1), i), prompt)
            rotation = tuple(a[:, 0] for a in rotation)
            hidden, state = decoder.decode(tokens, rotation, seen, i, own, prompt, state)
            return state, hidden

        fed = jnp.moveaxis(captions(), 2, 0)[:-1]
        sizes = {"groups": GROUPS, "prompt_tokens": 1, "captions": GROUP, "caption_tokens": TOKENS}
        state = CaptionState(decoder.empty(**sizes)[1].columns, decoder.begin(prompt, GROUP))
        _, rest = jax.lax.scan(step, state, (jnp.arange(TOKENS - 1), fed))
        first = jnp.broadcast_to(first[:, None], (GROUPS, GROUP, first.shape[-1]))
        return jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, 2)

    ours, reference = np.asarray(rollout(params)), hidden(shared)
    np.testing.assert_allclose(ours[REAL], reference[REAL], rtol=1e-5, atol=1e-5)
    assert np.isfinite(ours).all()


def test_states_of_zeros_have_the_shapes_of_real_ones() -> None:
    graphdef, params = nnx.split(model())

    def both(params: nnx.State) -> tuple[Any, Any]:
        decoder = DecodeModel(graphdef, laid_out(graphdef, params))
        prompt = decoder.prefill(prompts(), features(), chunk=4)[1]
        sizes = {"groups": GROUPS, "prompt_tokens": PROMPT, "captions": GROUP, "caption_tokens": TOKENS}
        empty, captions = decoder.empty(**sizes)
        return (prompt, decoder.begin(prompt, GROUP)), (empty, captions.carried)

    real, zeros = jax.eval_shape(both, params)
    assert real == zeros


def primitives(layers: int) -> Counter[str]:
    """Of the gradient, by name, at that depth."""
    text = dataclasses.replace(CONFIG.text, num_hidden_layers=layers)
    config = dataclasses.replace(CONFIG, text=text)
    graphdef, params = nnx.split(nnx.eval_shape(lambda: Qwen35(config, rngs=nnx.Rngs(0))))

    def loss(params: nnx.State) -> jax.Array:
        return jnp.sum(shared(nnx.merge(graphdef, params), features()).astype(jnp.float32))

    def counted(jaxpr: Any) -> Counter[str]:
        found = Counter(equation.primitive.name for equation in jaxpr.eqns)
        for equation in jaxpr.eqns:
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                found += counted(inner)
        return found

    return counted(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)


@pytest.mark.slow
def test_program_does_not_grow_with_depth() -> None:
    assert primitives(4) == primitives(12)


@pytest.mark.slow
def test_low_precision_stays_near_float32() -> None:
    params = nnx.state(model(), nnx.Param)
    low = nnx.split(Qwen35(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.bfloat16))[0]
    run = jax.jit(lambda p: shared(nnx.merge(low, p), features()))
    ours, reference = np.asarray(run(params), np.float32), hidden(shared)
    error = np.linalg.norm(ours[REAL] - reference[REAL]) / np.linalg.norm(reference[REAL])
    assert 1e-4 < error < 0.04
