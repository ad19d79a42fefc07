"""Matrix products of few rows in C++ (``cpp/few_rows.h``): what decoding a token takes about half of its time for.

The least that such a product can take is the time of reading the weight, and XLA's CPU backend
takes longer: for the products of one token of a small decoder 0.69 ms against 0.52 at 8 rows, 1.76
against 1.48 at 32, and as long from 64 rows on (two cores of an Emerald Rapids Xeon). A tied head
is quicker in XLA and stays there. Weights that are packed beforehand would be an eighth quicker,
and are left out: they are a second copy of all weights.
"""

from __future__ import annotations

import functools
import logging
import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vcap_jax.kernels.native.library import targets

logger = logging.getLogger(__name__)

Array = jax.Array

MOST_ROWS = 64
"""Rows up to which the product is taken in C++: with more, XLA's is as quick."""


def usable(dtype: DTypeLike) -> bool:
    """Whether ``product`` can take the place of XLA's in a computation in ``dtype`` here; says so in the log,
    once. The C++ kernels must be there (``library.targets``)."""
    mesh = jax.sharding.get_abstract_mesh()
    if jnp.dtype(dtype) != jnp.float32:
        _note(f"products are XLA's, since those in C++ are for float32, and this is {jnp.dtype(dtype)}")
        return False
    if mesh.size > 1:
        _note(f"products are XLA's, since those in C++ are for one device, and these are {mesh.size}")
        return False
    _note(f"products of up to {MOST_ROWS} rows are in C++")
    return True


def product(x: Array, weight: Array) -> Array:
    """``x @ weight`` in float32, [..., inputs] times [inputs, outputs]; has no gradient.

    Up to ``MOST_ROWS`` the numbers of a row do not depend on what other rows there are.
    """
    rows = math.prod(x.shape[:-1])
    if rows > MOST_ROWS:
        return x @ weight
    inputs, outputs = weight.shape
    result = jax.ShapeDtypeStruct((rows, outputs), jnp.float32)
    out = jax.ffi.ffi_call(targets()["few_rows"], result)(x.reshape(rows, inputs), weight)
    return out.reshape(*x.shape[:-1], outputs)


@functools.cache
def _note(message: str) -> None:
    logger.info("decoding: %s", message)
