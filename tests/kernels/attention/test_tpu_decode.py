"""The kernel for new tokens on TPUs, interpreted, against the plain softmax."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.attention.new_tokens import Sizes, caches, compiled_ahead, error, plain
from vcap_jax.kernels.attention import TpuDecode, UnsupportedAttention

KERNEL = TpuDecode(block=256, interpret=True)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(Sizes(2, 3, 4, 2, prompt=512, start=256, late=128), id="whole blocks"),
        pytest.param(Sizes(2, 2, 2, 1, prompt=300, start=192, late=64), id="blocks that are not whole"),
        pytest.param(Sizes(1, 16, 4, 1, prompt=40, start=0, late=1), id="one column"),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(jnp.float32, 1e-5), pytest.param(jnp.bfloat16, 2.0**-6, marks=pytest.mark.slow)]
)
def test_a_new_token_sees_what_it_should(sizes: Sizes, dtype, bound: float) -> None:
    arguments = caches(sizes, dtype)
    ours = jax.jit(KERNEL.decode)(*arguments)
    assert ours.dtype == dtype
    assert error(ours, plain(*arguments), arguments[2]) < bound


def test_blocks_that_nobody_sees_are_not_looked_at() -> None:
    """Whatever stands there, and however wide the cache is."""
    q, prompt, own = caches(Sizes(1, 3, 2, 1, prompt=256, start=512, late=64), jnp.float32)
    own = dataclasses.replace(
        own, seen=own.seen.__class__(own.seen.visible, own.seen.early % 200, own.seen.late, 512)
    )
    run = jax.jit(KERNEL.decode)
    expected = np.asarray(run(q, prompt, own))
    far = dataclasses.replace(
        own, keys=own.keys.at[..., 256:512].set(jnp.nan), values=own.values.at[:, 256:512].set(jnp.nan)
    )
    np.testing.assert_array_equal(run(q, prompt, far), expected)


@pytest.mark.parametrize(
    ("dtype", "head", "remedy"), [("float16", 128, "model.dtype"), ("bfloat16", 64, "dense")]
)
def test_what_it_cannot_compute_is_refused(dtype: str, head: int, remedy: str) -> None:
    with pytest.raises(UnsupportedAttention, match=remedy):
        TpuDecode().check(dtype, head)


@pytest.mark.slow
def test_it_compiles_for_a_v5p() -> None:
    found = compiled_ahead("tpu")
    assert found["calls"] == ["tpu"]
    assert found["temporary"] < 0.2 * found["caches"]  # none of them is copied
