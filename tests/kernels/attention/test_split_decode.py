"""Rows arranged for a kernel, its parts joined, on one device and on several: with a kernel of plain products."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from tests import quick_compile
from tests.kernels.attention.new_tokens import PlainParts, Sizes, caches, error, first_columns, plain
from tests.kernels.native.compiler import needs_compiler
from vcap_jax.kernels.attention import Cached, Native, Seen, decode, rows_of, split_decode
from vcap_jax.kernels.attention.scores import MASKED
from vcap_jax.kernels.attention.split_decode import Part
from vcap_jax.parallel.sharding import MeshConfig, make_mesh

decode_plainly = jax.jit(PlainParts().decode)


@pytest.mark.parametrize(
    "captions", [pytest.param(1, marks=pytest.mark.slow), 3, 8, pytest.param(16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "key_heads", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(8, marks=pytest.mark.slow)]
)
def test_every_caption_sees_its_prompt_and_itself(captions: int, key_heads: int) -> None:
    sizes = Sizes(2, captions, 8, key_heads, prompt=19, start=11, late=5, dim=16)
    arguments = caches(sizes, jnp.float32)
    assert error(decode_plainly(*arguments), plain(*arguments), arguments[2]) < 1e-5


def parts(batch: int, splits: int, rows: int, empty: int, seed: int) -> Part:
    """Of 2 key heads: drawn splits, and behind them some without keys."""
    rng = np.random.default_rng(seed)
    pads = [(0, 0), (0, 0), (0, empty), (0, 0)]
    out = rng.standard_normal((batch, 2, splits, rows, 64), np.float32)
    lse = 3 * rng.standard_normal((batch, 2, splits, rows), np.float32)
    return Part(
        jnp.pad(jnp.asarray(out), [*pads, (0, 0)]), jnp.pad(jnp.asarray(lse), pads, constant_values=MASKED)
    )


@pytest.mark.parametrize(
    ("of_prompt", "own"),
    [
        *(pytest.param(*splits, marks=pytest.mark.slow) for splits in ((1, 1), (2, 1), (1, 2))),
        (3, 3),
    ],
)
def test_splits_without_keys_change_no_bit(of_prompt: int, own: int) -> None:
    """Of float32, in which a compiler may add a product without rounding it: here as it does for a run, and not as
    quickly as it can."""

    def joined(behind_prompt: int, behind_own: int) -> np.ndarray:
        given = parts(2, of_prompt, 8 * 4, behind_prompt, 0), parts(2 * 8, own, 4, behind_own, 1)
        lowered = jax.jit(split_decode._joined, static_argnums=2).lower(*given, (2, 8, 2, 4, 64))
        return np.asarray(lowered.compile(compiler_options=quick_compile.usual())(*given))

    expected = joined(0, 0)
    for behind_prompt, behind_own in ((1, 0), (0, 1), (2, 3)):
        np.testing.assert_array_equal(joined(behind_prompt, behind_own), expected)


def test_it_is_what_plain_xla_computes_from_the_mask() -> None:
    """Ranges and mask say the same where all captions of a group are of one length."""
    q, prompt, own = caches(Sizes(2, 3, 4, 2, prompt=19, start=11, late=5, dim=16), jnp.float32)
    early, late = (jnp.asarray(x)[:, None].repeat(3, 1) for x in ((7, 11), (1, 5)))
    column = jnp.arange(16)
    visible = (column < early[:, :1]) | ((column >= 11) & (column < 11 + late[:, :1]))
    own = dataclasses.replace(own, seen=Seen(visible, early, late, 11))
    np.testing.assert_allclose(decode_plainly(q, prompt, own), jax.jit(decode)(q, prompt, own), atol=1e-5)


@pytest.mark.parametrize("tensor", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("parts", [1, 2], ids=["heads together", "heads in parts"])
@pytest.mark.parametrize("inside", [False, True], ids=["by the compiler", "inside a shard_map over groups"])
def test_devices_compute_their_own_groups_and_heads(tensor: int, inside: bool, parts: int) -> None:
    sizes = Sizes(4, 3, 8, 4, prompt=19, start=11, late=5, dim=16)
    arguments = caches(sizes, jnp.float32)
    mesh = make_mesh(MeshConfig(data=4 // tensor, fsdp=1, tensor=tensor), jax.devices()[:4])
    rows, caption_rows = NamedSharding(mesh, Spec("data", "tensor")), NamedSharding(mesh, Spec("data"))
    q, prompt, own = arguments
    own = in_parts(own, sizes, parts, replicas=4 // tensor if inside else 1)
    prompt = Cached(*(jax.device_put(x, rows) for x in (prompt.keys, prompt.values)), prompt.seen)
    own = Cached(*(jax.device_put(x, caption_rows) for x in (own.keys, own.values)), own.seen, own.parts)
    run = PlainParts().decode
    if inside:
        run = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=Spec("data"),
            out_specs=Spec("data"),
            axis_names={"data"},
            check_vma=False,
        )
    with jax.set_mesh(mesh):
        ours = jax.jit(run)(q, prompt, own)
    assert error(ours, plain(*arguments), arguments[2]) < 1e-5


def in_parts(captions: Cached, sizes: Sizes, parts: int, replicas: int = 1) -> Cached:
    """With the heads in parts, those of each replica's groups by themselves."""

    def of(x: jax.Array) -> jax.Array:
        heads = x.reshape(replicas, -1, sizes.captions, sizes.key_heads, *x.shape[1:])
        return jnp.concatenate([rows_of(one, parts) for one in heads])

    return dataclasses.replace(captions, keys=of(captions.keys), values=of(captions.values), parts=parts)


@pytest.mark.parametrize("parts", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(decode, id="dense"),
        pytest.param(Native().decode, id="native", marks=needs_compiler),
        pytest.param(PlainParts().decode, id="in parts"),
    ],
)
def test_heads_in_parts_are_the_same_heads(run: Callable[..., jax.Array], parts: int) -> None:
    sizes = Sizes(2, 3, 8, 4, prompt=19, start=11, late=5, dim=16)
    q, prompt, own = caches(sizes, jnp.float32)
    own = dataclasses.replace(own, seen=first_columns(5, 2, 3, 16))
    ours = jax.jit(run)(q, prompt, in_parts(own, sizes, parts))
    np.testing.assert_array_equal(ours, jax.jit(run)(q, prompt, own))


def test_what_has_ended_and_what_nobody_sees_is_not_looked_at() -> None:
    """Of an ended caption no column, of a group whose captions have all ended not even the prompt."""
    q, prompt, own = caches(Sizes(2, 3, 4, 2, prompt=19, start=11, late=5, dim=16), jnp.float32)
    seen = dataclasses.replace(own.seen, early=own.seen.early.at[1].set(0), late=own.seen.late.at[1].set(0))
    own = dataclasses.replace(own, seen=seen)
    expected = np.asarray(decode_plainly(q, prompt, own))
    poisoned = dataclasses.replace(prompt, values=prompt.values.at[1].set(jnp.nan))
    ours = decode_plainly(q, poisoned, dataclasses.replace(own, values=own.values.at[6:].set(jnp.nan)))
    np.testing.assert_array_equal(ours, expected)
    assert not expected[1].any()


def test_a_caption_s_numbers_do_not_depend_on_what_decodes_beside_it() -> None:
    q, prompt, own = caches(Sizes(3, 2, 4, 2, prompt=19, start=11, late=5, dim=16), jnp.float32)
    together = decode_plainly(q, prompt, own)

    def part(x: jax.Array, rows: int) -> jax.Array:
        return x[rows : 2 * rows]

    alone = decode_plainly(
        q[1:2],
        Cached(prompt.keys[1:2], prompt.values[1:2], jax.tree.map(lambda x: x[1:2], prompt.seen)),
        Cached(part(own.keys, 4), part(own.values, 4), jax.tree.map(lambda x: x[1:2], own.seen)),
    )
    np.testing.assert_allclose(alone, together[1:2], rtol=0, atol=1e-6)
