"""The group forward against the plain one, the cache against both, and what must not grow with depth."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator
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
from tests.models.qwen3_vl import parity_cases as cases
from vcap_jax.kernels.attention import Chunked, Dense, Kernel, Paired
from vcap_jax.kernels.attention.native import Native
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig
from vcap_jax.models.qwen3_vl.decoding import DecodeModel
from vcap_jax.models.qwen3_vl.inputs import PromptBatch, VisionInputs, VisualFeatures
from vcap_jax.models.qwen3_vl.model import Qwen3VL
from vcap_jax.models.qwen3_vl.two_towers import next_position

CONFIG = cases.MODELS["tied"]
GROUPS, PROMPT, VISUAL, GROUP, TOKENS = 3, 9, 4, 2, 4
REAL = slice(0, 2)  # the last group is padding


@functools.cache
def model(**settings: Any) -> Qwen3VL:
    return Qwen3VL(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.float32, **settings)


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
    rng = np.random.default_rng(1)
    taps, width = len(CONFIG.vision.deepstack_visual_indexes), CONFIG.text.hidden_size
    embeddings = rng.standard_normal((GROUPS, VISUAL, width)).astype(np.float32)
    return VisualFeatures(
        embeddings, rng.standard_normal((GROUPS, taps, *embeddings.shape[1:])).astype(np.float32)
    )


def captions() -> np.ndarray:
    return np.random.default_rng(2).integers(0, cases.VOCABULARY, (GROUPS, GROUP, TOKENS)).astype(np.int32)


def unshared(model: Qwen3VL, features: VisualFeatures) -> jax.Array:
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
    repeated = VisualFeatures(
        jnp.repeat(features.embeddings, GROUP, axis=0), jnp.repeat(features.deepstack, GROUP, axis=0)
    )
    hidden = model.hidden(PromptBatch(tokens, positions, lengths, index, None), repeated)
    rows = np.maximum(lengths - TOKENS - 1, 0)[:, None] + np.arange(TOKENS)
    chosen = jnp.take_along_axis(hidden, rows[..., None], axis=1)
    return chosen.reshape(GROUPS, GROUP, TOKENS, -1)


def shared(model: Qwen3VL, features: VisualFeatures) -> jax.Array:
    return model.caption_hidden(prompts(), features, captions())


@functools.cache
def value_and_gradients(forward: Callable) -> tuple[np.ndarray, Any]:
    """Hidden states, and gradients of a random function of those of real groups, to parameters and
    features.
    """
    weights = np.random.default_rng(3).standard_normal((GROUPS, GROUP, TOKENS, CONFIG.text.hidden_size))
    weights[REAL.stop :] = 0
    graphdef, params = nnx.split(model())

    def loss(params: nnx.State, features: VisualFeatures) -> tuple[jax.Array, jax.Array]:
        hidden = forward(nnx.merge(graphdef, params), features)
        return jnp.sum(hidden * weights.astype(np.float32)), hidden

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, hidden), gradients = run(params, features())
    return np.asarray(hidden), gradients


def test_shared_prefix_equals_every_caption_on_its_own() -> None:
    ours, reference = value_and_gradients(shared)[0], value_and_gradients(unshared)[0]
    np.testing.assert_allclose(ours[REAL], reference[REAL], rtol=1e-5, atol=1e-5)
    assert np.isfinite(ours).all()


def test_gradients_through_the_shared_prefix() -> None:
    ours, reference = value_and_gradients(shared)[1], value_and_gradients(unshared)[1]
    paths = jax.tree_util.tree_flatten_with_path(ours)[0]
    for (path, gradient), expected in zip(paths, jax.tree.leaves(reference), strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            gradient, expected, atol=1e-5 * scale + 1e-12, err_msg=jax.tree_util.keystr(path)
        )
    assert np.abs(ours[1].deepstack).max() > 0


@pytest.mark.parametrize(
    ("chunk", "kernel"),
    [
        (PROMPT, Dense()),
        (4, Dense()),
        pytest.param(4, Chunked(queries=6, scores=36, whole=0), marks=pytest.mark.slow),
        pytest.param(PROMPT, Native(), marks=needs_compiler),
        pytest.param(4, Native(), marks=needs_compiler),
        pytest.param(4, Paired(sequences=Dense(), tokens=PlainParts()), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_prefill_and_decode_equal_the_training_forward(chunk: int, kernel: Kernel) -> None:
    """In one go or in chunks: 9 prompt tokens make two whole chunks and a padded one."""
    graphdef, params = nnx.split(model(kernel=kernel))

    @jax.jit
    def rollout(params: nnx.State) -> jax.Array:
        model = DecodeModel(graphdef, laid_out(graphdef, params))
        first, prompt_cache = model.prefill(prompts(), features(), chunk=chunk)
        steps = jnp.broadcast_to(jnp.arange(TOKENS), (GROUPS, TOKENS))
        rotations, seen = model.ahead(steps, prompt_cache)

        def step(cache: Any, x: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
            i, tokens = x
            own = first_columns(i + 1, GROUPS, GROUP, TOKENS)
            rotation = jax.tree.map(lambda x: x[:, i], rotations)
            hidden, cache = model.decode(tokens, rotation, seen, i, own, prompt_cache, cache)
            return cache, hidden

        fed = jnp.moveaxis(captions(), 2, 0)[:-1]
        sizes = {"groups": GROUPS, "prompt_tokens": 1, "captions": GROUP, "caption_tokens": TOKENS}
        cache = model.empty(**sizes)[1]
        _, rest = jax.lax.scan(step, cache, (jnp.arange(TOKENS - 1), fed))
        first = jnp.broadcast_to(first[:, None], (GROUPS, GROUP, first.shape[-1]))
        return jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, 2)

    ours, reference = np.asarray(rollout(params)), value_and_gradients(shared)[0]
    np.testing.assert_allclose(ours[REAL], reference[REAL], rtol=1e-5, atol=1e-5)
    assert np.isfinite(ours).all()


def test_next_position_follows_the_largest_real_one() -> None:
    batch = prompts()
    expected = [batch.positions[0].max() + 1, batch.positions[1, :, :5].max() + 1, 0]
    np.testing.assert_array_equal(next_position(batch), expected)


def abstract(config: Qwen3VLConfig, **settings: Any) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: Qwen3VL(config, rngs=nnx.Rngs(0), **settings)))


def deep(config: Qwen3VLConfig, layers: int) -> Qwen3VLConfig:
    return dataclasses.replace(
        config,
        text=dataclasses.replace(config.text, num_hidden_layers=layers),
        vision=dataclasses.replace(config.vision, depth=layers, deepstack_visual_indexes=(0, 1)),
    )


def encode(model: Qwen3VL) -> VisualFeatures:
    patches = np.zeros((1, 2, 8, CONFIG.vision.patch_dim), np.uint8)
    return model.encode_vision(VisionInputs(patches, np.array([[[2, 4], [0, 0]]], np.int32)))


PROGRAMS: dict[str, Callable[[Qwen3VL], Any]] = {
    "hidden": lambda model: model.hidden(prompts(), features()),
    "caption_hidden": lambda model: shared(model, features()),
    "gradient": lambda model: nnx.grad(lambda model: jnp.sum(shared(model, features())))(model),
    "encode_vision": encode,
}


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def program(config: Qwen3VLConfig, forward: Callable, **settings: Any) -> list[Any]:
    graphdef, params = abstract(config, **settings)
    return list(equations(jax.make_jaxpr(lambda params: forward(nnx.merge(graphdef, params)))(params).jaxpr))


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program_does_not_grow_with_depth(name: str) -> None:
    shallow, tall = (
        Counter(equation.primitive.name for equation in program(deep(CONFIG, layers), PROGRAMS[name]))
        for layers in (2, 8)
    )
    assert shallow == tall
    assert shallow["scan"] > 0


def test_deepstack_is_a_branch_and_absent_from_decoding() -> None:
    # In float32: narrow products are a branch by platform as well.
    visual = program(CONFIG, PROGRAMS["hidden"], dtype=jnp.float32)
    assert any(equation.primitive.name == "cond" for equation in visual)
    text_only = program(CONFIG, lambda model: model.hidden(prompts(), None), dtype=jnp.float32)
    assert not any(equation.primitive.name == "cond" for equation in text_only)


def test_remat_is_an_option_of_both_towers() -> None:
    for name in ("hidden", "encode_vision"):
        kinds = [
            {equation.primitive.name for equation in program(CONFIG, PROGRAMS[name], remat=remat)}
            for remat in ("none", "layer")
        ]
        assert kinds[1] - kinds[0] <= {"checkpoint", "remat2"}
        assert kinds[1] - kinds[0]


def test_types_of_a_low_precision_computation() -> None:
    graphdef, params = abstract(CONFIG, dtype=jnp.bfloat16, param_dtype=jnp.float32)

    def forward(params: Any) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graphdef, params)
        hidden = shared(model, features())
        return hidden, model.logits(hidden)

    hidden, logits = jax.eval_shape(forward, params)
    assert hidden.dtype == jnp.bfloat16
    assert logits.dtype == jnp.float32
    gradients = jax.eval_shape(jax.grad(lambda p: forward(p)[1].sum()), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}


def test_low_precision_stays_near_float32() -> None:
    """bfloat16 keeps eight bits; six roundings per layer of three layers leave about one part in fifty."""
    low = Qwen3VL(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    graphdef, params = nnx.split(low)
    run = jax.jit(lambda p: shared(nnx.merge(graphdef, p), features()))
    ours, reference = np.asarray(run(params), np.float32), value_and_gradients(shared)[0]
    error = np.linalg.norm(ours[REAL] - reference[REAL]) / np.linalg.norm(reference[REAL])
    assert 1e-4 < error < 0.02


def test_same_seed_same_model() -> None:
    same, other = Qwen3VL(CONFIG, rngs=nnx.Rngs(0)), Qwen3VL(CONFIG, rngs=nnx.Rngs(1))
    for a, b in zip(*(jax.tree.leaves(nnx.state(m, nnx.Param)) for m in (model(), same)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(same.text.embed_tokens[...], other.text.embed_tokens[...])
