"""The CPU's products and sums stay with XLA in the programs that compute whole sequences."""

import jax
import jax.numpy as jnp
import pytest

from vcap_jax.parallel import compiler_options as compiler
from vcap_jax.parallel.group_sharding import GroupShardedJit

LIBRARY = "ynn_fusion"


def _norm_gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    return (x @ y * x * x).sum(0)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the options are the CPU's")
def test_programs_of_a_model_leave_the_library_out() -> None:
    x, y = jnp.ones((2624, 256)), jnp.ones((256, 256))
    alone = jax.jit(_norm_gradient).lower(x, y).compile().as_text()
    if LIBRARY not in alone:
        pytest.skip("this XLA does not use the library")
    assert LIBRARY not in GroupShardedJit(_norm_gradient).lower(x, y).compile().as_text()


def test_there_are_none_for_an_accelerator() -> None:
    assert compiler.options("gpu") == compiler.options("tpu") == {}


def test_options_that_xla_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "CPU", {"xla_cpu_no_such_option": "1"})
    compiler.options.cache_clear()
    try:
        assert compiler.options("cpu") == {}
    finally:
        compiler.options.cache_clear()
