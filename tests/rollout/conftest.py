"""What the sampler's tests share."""

from __future__ import annotations

import jax
import pytest
from flax import nnx

from tests.tiny_policy import tiny_model


@pytest.fixture(scope="module")
def policy():
    graphdef, params = nnx.split(tiny_model())
    return graphdef, params, nnx.State({})


@pytest.fixture
def compiled():
    """Names of the programs that are compiled, by whichever thread."""
    names = []

    def listen(event, _, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(more["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)
