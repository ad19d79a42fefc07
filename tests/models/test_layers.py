"""The layers that both towers are made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.models.layers import ACTIVATIONS, sigmoid


def exact_sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


EXACT: dict[str, Callable[[float], float]] = {
    "gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_pytorch_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * exact_sigmoid(1.702 * x),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x * exact_sigmoid(x),
}


def test_every_activation_is_compared() -> None:
    assert EXACT.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("name", [*EXACT, "sigmoid"])
def test_an_activation_in_bfloat16_is_off_by_one_rounding(name: str) -> None:
    function, exact = (ACTIVATIONS[name], EXACT[name]) if name in EXACT else (sigmoid, exact_sigmoid)
    x = jnp.linspace(-3, 3, 1000).astype(jnp.bfloat16)
    found = jax.jit(function)(x)
    assert found.dtype == jnp.bfloat16
    expected = np.array([exact(float(value)) for value in x])
    # Half of the last of eight binary digits, and what float32 adds.
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=1.01 * 2.0**-8, atol=0)
