"""The kernel for new tokens on Hopper GPUs, interpreted thread by thread, against the plain softmax."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.attention.new_tokens import (
    Sizes,
    caches,
    compiled_ahead,
    error,
    plain,
    quicker_interpreter,
)
from vcap_jax.kernels.attention import Cached, Hopper, UnsupportedAttention, hopper
from vcap_jax.kernels.attention.hopper import Cut

BOUND = 2.0**-6
"""bfloat16 rounds weights and output once each."""


def run(of_prompt: Cut, of_captions: Cut, arguments: tuple[jax.Array, Cached, Cached]) -> jax.Array:
    """The kernel's output by the interpreter."""
    kernel = Hopper(of_prompt=of_prompt, of_captions=of_captions, interpret=True)
    with quicker_interpreter():
        return jax.jit(kernel.decode)(*arguments)


def interpreted(sizes: Sizes, prompt_splits: int = 1, caption_splits: int = 1, stages: int = 2) -> float:
    """The error of the kernel with that many splits, also of few keys."""
    arguments = caches(sizes)
    ours = run(Cut(prompt_splits, 1, stages), Cut(caption_splits, 1, stages), arguments)
    assert ours.dtype == jnp.bfloat16
    return error(ours, plain(*arguments), arguments[2])


def test_a_new_token_sees_what_it_should() -> None:
    """Two parts of a prompt in whole blocks; a caption with two ranges, one in its first chunk, one that has ended."""
    assert interpreted(Sizes(1, 3, 2, 1, prompt=192, start=128, late=64, dim=64), prompt_splits=2) < BOUND


@pytest.mark.long
@pytest.mark.parametrize(
    ("sizes", "splits"),
    [
        pytest.param(
            Sizes(1, 1, 16, 8, prompt=448, start=64, late=64), (3, 2), id="one caption, eight key heads"
        ),
        pytest.param(Sizes(1, 16, 8, 1, prompt=128, start=64, late=64), (2, 1), id="two tiles of rows"),
        pytest.param(
            Sizes(2, 3, 4, 2, prompt=300, start=100, late=30), (2, 2), id="blocks that are not whole"
        ),
        pytest.param(Sizes(1, 2, 2, 1, prompt=576, start=0, late=1), (1, 1), id="a ring that goes round"),
        pytest.param(
            Sizes(1, 2, 2, 1, prompt=192, start=64, late=1), (1, 1, 4), id="a ring longer than the keys"
        ),
    ],
)
def test_uneven_lengths_groups_and_heads(sizes: Sizes, splits: tuple[int, ...]) -> None:
    assert interpreted(sizes, *splits) < BOUND


def wider(cached: Cached, more: int) -> Cached:
    """The same keys and values in caches of so many columns more, in which NaN lies."""

    def widened(x: jax.Array, axis: int) -> jax.Array:
        pads = [(0, more if at == axis else 0) for at in range(x.ndim)]
        return jnp.pad(x, pads, constant_values=jnp.nan)

    columns = cached.keys.ndim - 1
    visible = jnp.pad(cached.seen.visible, ((0, 0), (0, more)))
    seen = dataclasses.replace(cached.seen, visible=visible)
    return dataclasses.replace(
        cached, keys=widened(cached.keys, columns), values=widened(cached.values, columns - 1), seen=seen
    )


@pytest.mark.slow
@pytest.mark.parametrize("least", [2, 3])
def test_numbers_do_not_depend_on_how_wide_the_caches_are(least: int) -> None:
    """Bit for bit, though there are more splits in wider ones."""
    queries, prompt, captions = caches(Sizes(1, 2, 2, 1, prompt=192, start=64, late=64, dim=64))
    cut = Cut(4, least)
    assert cut.used(3) < cut.used(8)
    narrow = run(cut, cut, (queries, prompt, captions))
    assert error(narrow, plain(queries, prompt, captions), captions) < BOUND
    wide = run(cut, cut, (queries, wider(prompt, 320), captions))
    assert np.array_equal(*(np.asarray(x, np.float32) for x in (narrow, wide)))


@pytest.mark.parametrize(
    ("blocks", "used"), [(1, 1), (8, 1), (9, 2), (32, 4), (33, 4), (1000, 4)], ids=lambda value: f"{value}"
)
def test_few_keys_are_cut_into_few_splits(blocks: int, used: int) -> None:
    assert Cut(4, least=8).used(blocks) == used


@pytest.mark.slow
def test_it_compiles_for_hopper_without_spilling_registers() -> None:
    found = compiled_ahead("hopper")
    assert found["calls"] == ["hopper"]
    assert found["temporary"] < 0.2 * found["caches"]  # none of them is copied
    spills = [line for line in found["assembler"] if "spill" in line]
    assert spills
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)


@pytest.mark.parametrize("rows", [1, 4, 8, 32, 63, 64, 65, 128, 200])
def test_tiles_hold_the_rows(rows: int) -> None:
    count, each = hopper.tiles(rows)
    assert each % 8 == 0
    assert each <= hopper.TILE
    assert rows <= count * each < rows + 8 * count


@pytest.mark.parametrize(
    ("dtype", "head", "remedy"),
    [("float32", 128, "model.dtype=bfloat16"), ("bfloat16", 96, "dense"), ("bfloat16", 256, "dense")],
)
def test_what_it_cannot_compute_is_refused(dtype: str, head: int, remedy: str) -> None:
    with pytest.raises(UnsupportedAttention, match=remedy):
        Hopper().check(dtype, head)


def test_a_release_of_jax_that_has_changed_mosaic_is_told(monkeypatch) -> None:
    Hopper().check(jnp.bfloat16, 128)
    hopper._mosaic.cache_clear()
    monkeypatch.setitem(hopper.PARAMETERS, "wgmma", "acc a b another")
    with pytest.raises(UnsupportedAttention, match=r"wgmma takes no another.*install jax 0.10"):
        Hopper().check(jnp.bfloat16, 128)
    monkeypatch.undo()
    hopper._mosaic.cache_clear()


def test_equal_settings_are_equal() -> None:
    """A kernel is part of a model's definition, which programs are cached by."""
    assert hash(Hopper()) == hash(Hopper())
    assert dataclasses.replace(Hopper(), of_prompt=Cut(2)) != Hopper()
    assert np.prod(hopper.tiles(64)) == 64
