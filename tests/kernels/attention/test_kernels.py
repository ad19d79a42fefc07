"""Every kernel that a CPU can run against the plain softmax: outputs and gradients, in float32 and bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.attention.unshared import Group, attention, unshared
from tests.kernels.native.compiler import needs_compiler
from vcap_jax.kernels.attention import Chunked, Dense, Kernel, Native, Splash, causal, frames, grouped
from vcap_jax.parallel.sharding import MeshConfig, make_mesh

GROUPS = {
    # Several blocks of prompt and captions, none of them whole; uneven prompts; one group is padding.
    "uneven": Group(prompt=21, group=3, tokens=10, lengths=(21, 9, 0, 1)),
    "one caption": Group(prompt=12, group=1, tokens=9, heads=3, key_heads=3, lengths=(12, 5)),
    "eight captions": Group(prompt=17, group=8, tokens=5, heads=8, key_heads=2, lengths=(16, 3)),
    "long": Group(prompt=300, group=2, tokens=9, heads=2, key_heads=1, lengths=(300, 131)),
    "one key head": Group(prompt=7, group=2, tokens=13, heads=4, key_heads=1, dim=12, lengths=(7,)),
}
BLOCKS = Chunked(queries=8, scores=160, diagonal=8, whole=0)
NATIVE = pytest.param(Native(), marks=needs_compiler, id="native")
KERNELS: list[Any] = [
    *(
        pytest.param(name, BLOCKS, id=f"chunked, {name}", marks=[] if name == "uneven" else pytest.mark.slow)
        for name in GROUPS
    ),
    pytest.param("uneven", Chunked(scores=1 << 14, whole=0), id="chunked, one block", marks=pytest.mark.slow),
    pytest.param("uneven", Dense(), id="dense"),
    *(pytest.param(name, Native(), marks=needs_compiler, id=f"native, {name}") for name in GROUPS),
    pytest.param("uneven", Splash(interpret=True), id="splash"),
    pytest.param("one key head", Splash(interpret=True), id="splash, one key head", marks=pytest.mark.slow),
    pytest.param(
        "long",
        Splash(block=128, spans=1, interpret=True),
        id="splash, blocks in spans",
        marks=pytest.mark.slow,
    ),
]


def value_and_gradients(function: Callable, arrays: tuple[jax.Array, ...], cotangent: np.ndarray) -> list:
    def loss(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = function(*arrays)
        return jnp.sum(out.astype(jnp.float32) * cotangent), out

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    (_, out), gradients = run(*arrays)
    return [np.asarray(x, np.float32) for x in (out, *gradients)]


def compare(ours: list, expected: list, tolerance: float) -> None:
    for name, x, y in zip(("output", "queries", "keys", "values"), ours, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.abs(y).max(), err_msg=name)


@functools.cache
def plain_softmax(name: str, dtype: Any) -> list:
    """What every kernel is held against: output and gradients of that group."""
    group = GROUPS[name]
    return value_and_gradients(lambda *x: unshared(group, *x), group.arrays(dtype), group.cotangent())


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_group_equals_every_caption_with_its_own_prompt(name: str, kernel: Kernel) -> None:
    group = GROUPS[name]
    lengths = jnp.asarray(group.lengths)

    def shared(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = grouped(q, k, v, lengths, group.prompt, group.group, kernel)
        return jnp.where(group.real[..., None, None], out, 0)

    ours = value_and_gradients(shared, group.arrays(), group.cotangent())
    compare(ours, plain_softmax(name, jnp.float32), 1e-5)
    for gradient in ours[1:]:
        assert not gradient[~group.real].any()  # padding has no influence, a padding group none on anything


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(BLOCKS, id="chunked", marks=pytest.mark.slow),
        NATIVE,
        pytest.param(Splash(interpret=True), id="splash", marks=pytest.mark.slow),
    ],
)
def test_bfloat16_stays_within_its_rounding(kernel: Kernel) -> None:
    """Eight bits: the plain softmax on the same rounded inputs is met to a few roundings of the largest entry."""
    group = GROUPS["uneven"]
    arrays, cotangent = group.arrays(jnp.bfloat16), group.cotangent()

    def shared(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = grouped(q, k, v, jnp.asarray(group.lengths), group.prompt, group.group, kernel)
        assert out.dtype == jnp.bfloat16
        return jnp.where(group.real[..., None, None], out, 0)

    ours = value_and_gradients(shared, arrays, cotangent)
    compare(ours, plain_softmax("uneven", jnp.bfloat16), 2.0**-6)


PATCHES = np.array([20, 13, 2, 0])
FRAMED = np.arange(20) < PATCHES[:, None]


def framed() -> tuple[tuple[jax.Array, ...], np.ndarray]:
    """Queries, keys and values of frames, and a gradient of the output."""
    rng = np.random.default_rng(2)
    arrays = tuple(jnp.asarray(rng.standard_normal((*FRAMED.shape, 2, 9)), jnp.float32) for _ in range(3))
    return arrays, rng.standard_normal((*FRAMED.shape, 2, 9)) * FRAMED[..., None, None]


@functools.cache
def plain_frames() -> list:
    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        visible = FRAMED[:, None] | np.eye(FRAMED.shape[1], dtype=bool)
        return jnp.where(FRAMED[..., None, None], jax.vmap(attention)(q, k, v, visible), 0)

    return value_and_gradients(plain, *framed())


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(BLOCKS, id="chunked"),
        pytest.param(Dense(), id="dense"),
        NATIVE,
        pytest.param(Splash(interpret=True), id="splash"),
    ],
)
def test_frames_see_their_own_patches(kernel: Kernel) -> None:
    """A whole frame, a padded one, one shorter than a block, and one without any patch; 9 is an odd head size."""
    arrays, cotangent = framed()

    def ours(*arrays: jax.Array) -> jax.Array:
        return jnp.where(FRAMED[..., None, None], frames(*arrays, jnp.asarray(PATCHES), kernel), 0)

    compare(value_and_gradients(ours, arrays, cotangent), plain_frames(), 1e-5)


def test_causal_over_several_blocks() -> None:
    q, k, v = Group(prompt=30, group=1, tokens=3, lengths=(30,)).arrays()
    cotangent = np.random.default_rng(1).standard_normal(q.shape)
    visible = np.tril(np.ones((33, 33), bool))
    ours = value_and_gradients(lambda q, k, v: causal(q, k, v, BLOCKS), (q, k, v), cotangent)
    plain = value_and_gradients(
        lambda q, k, v: attention(q[0], k[0], v[0], visible)[None], (q, k, v), cotangent
    )
    compare(ours, plain, 1e-5)


def test_scores_far_apart_do_not_overflow() -> None:
    """Scores of several hundred: exp of any of them, unshifted, is infinite."""
    group = GROUPS["one caption"]
    q, k, v = group.arrays()

    @jax.jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = grouped(q, k, v, jnp.asarray(group.lengths), group.prompt, group.group, BLOCKS)
        return jnp.where(group.real[..., None, None], out, 0), unshared(group, q, k, v)

    np.testing.assert_allclose(*both(100 * q, k, v), atol=1e-4)


@pytest.mark.slow
def test_splash_on_several_devices() -> None:
    """Groups and key heads cut over a mesh: every device computes its own, and the parts are the whole."""
    group = Group(prompt=21, group=2, tokens=10, lengths=(21, 9))
    arrays, cotangent = group.arrays(), group.cotangent()

    def shared(kernel: Kernel) -> Callable:
        def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            out = grouped(q, k, v, jnp.asarray(group.lengths), group.prompt, group.group, kernel)
            return jnp.where(group.real[..., None, None], out, 0)

        return run

    with jax.set_mesh(make_mesh(MeshConfig(fsdp=2, tensor=2))):
        ours = value_and_gradients(shared(Splash(interpret=True)), arrays, cotangent)
    compare(ours, value_and_gradients(shared(Dense()), arrays, cotangent), 1e-5)


def largest_array(function: Callable, *arrays: jax.Array) -> int:
    """Numbers in the largest array that a program makes, inner programs included."""

    def sizes(jaxpr: Any) -> Any:
        for equation in jaxpr.eqns:
            yield from (var.aval.size for var in equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from sizes(inner)

    return max(sizes(jax.make_jaxpr(function)(*arrays).jaxpr))


def test_no_array_has_the_size_of_the_scores() -> None:
    """Forward and backward: q, k, v and what is as large, and a block of scores; the dense path makes them all."""
    group = Group(prompt=256, group=4, tokens=64, dim=16, lengths=(256,))
    arrays, cotangent = group.arrays(), group.cotangent()

    def gradient(kernel: Kernel) -> Callable:
        def loss(*arrays: jax.Array) -> jax.Array:
            out = grouped(*arrays, jnp.asarray(group.lengths), group.prompt, group.group, kernel)
            return jnp.sum(out * cotangent)

        return jax.grad(loss, argnums=(0, 1, 2))

    queries = arrays[0].size
    assert (
        largest_array(gradient(Chunked(queries=64, scores=4096, diagonal=32, whole=0)), *arrays)
        <= 2 * queries
    )
    assert largest_array(gradient(Dense()), *arrays) > 8 * queries
