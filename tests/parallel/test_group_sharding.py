"""Programs whose compiled text is looked at before they run, and the options that they are compiled with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.models.layers import take_rows
from vcap_jax.parallel import group_sharding
from vcap_jax.parallel.group_sharding import GroupShardedJit
from vcap_jax.parallel.sharding import MeshConfig, Placement, Rule
from vcap_jax.plan.hlo import parse
from vcap_jax.training.compile_counter import CompileCounter


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("checked", [False, True])
def test_the_text_of_the_next_program_is_checked_once_and_nothing_compiled_for_it(
    devices: int, checked: bool
) -> None:
    placement = Placement.build(MeshConfig(fsdp=-1), jax.devices()[:devices])
    params = placement.state({"w": np.ones((8, 4), np.float32)})
    traced: list[tuple[int, ...]] = []
    seen: list[str] = []

    def product(params, total, x):
        traced.append(x.shape)
        return total + x @ params["w"]

    program = GroupShardedJit(product, donate_argnums=(1,))
    if checked:
        program.check_next(seen.append)
    totals = [placement.replicated(np.zeros((2, 4), np.float32)) for _ in range(3)]
    x = placement.replicated(np.ones((2, 8), np.float32))
    GroupShardedJit(lambda params, x: x + params["w"][0, 0])(
        params, x
    )  # what any first program of a process brings
    with CompileCounter() as compiles:
        for total in totals:
            result = program(params, total, x)
    assert (compiles.count, len(traced), len(seen)) == (1, 1, int(checked))
    assert all("HloModule" in text for text in seen)
    np.testing.assert_array_equal(result, np.full((2, 4), 8.0))


def test_a_program_that_fails_its_check_does_not_run() -> None:
    def refuse(text: str) -> None:
        raise ValueError("not in it")

    program = GroupShardedJit(lambda params: params * 2)
    program.check_next(refuse)
    with pytest.raises(ValueError, match="not in it"):
        program(jnp.ones(3))
    # Nor the next time: what was wrong is still wrong.
    with pytest.raises(ValueError, match="not in it"):
        program(jnp.ones(3))


def looks_up(table: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    rows = group_sharding.looked_up(take_rows(table, tokens))
    return (jnp.tanh(rows) * weights).sum()


@pytest.mark.parametrize(("data", "fsdp", "tensor"), [(2, 2, 1), (1, 4, 1), (4, 1, 1), (2, 1, 2)])
def test_no_device_gets_what_all_groups_look_up_in_a_table(data: int, fsdp: int, tensor: int) -> None:
    """Neither the rows nor their gradients, with copies of the model or without; and both are what one device has."""
    rule = Rule(r"^table$", tensor=-2, fsdp=(-1, -2))
    placement = Placement.build(
        MeshConfig(data=data, fsdp=fsdp, tensor=tensor), jax.devices()[:4], rules=(rule,)
    )
    rng = np.random.default_rng(0)
    table = rng.standard_normal((4096, 16), np.float32)
    tokens = rng.integers(0, len(table), (4, 12), dtype=np.int32)
    weights = rng.standard_normal((*tokens.shape, 16), np.float32)
    program = GroupShardedJit(jax.value_and_grad(looks_up))
    arguments = (
        placement.state({"table": table})["table"],
        placement.batch(tokens),
        placement.batch(weights),
    )
    instructions = parse(program.lower(*arguments).compile().as_text()).computations.values()
    gathered = [
        shape.dims
        for computation in instructions
        for instruction in computation
        if instruction.opcode.startswith("all-gather")
        for shape in instruction.shapes
        if shape.dtype == "f32"
    ]
    assert [dims for dims in gathered if dims[0] == len(tokens)] == []
    value, gradient = program(*arguments)
    expected, expected_gradient = jax.value_and_grad(looks_up)(table, tokens, weights)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)


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
    assert group_sharding.compiler_options("gpu") == group_sharding.compiler_options("tpu") == {}


def test_options_that_xla_does_not_know_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sharding, "CPU_OPTIONS", {"xla_cpu_no_such_option": "1"})
    group_sharding.compiler_options.cache_clear()
    try:
        assert group_sharding.compiler_options("cpu") == {}
    finally:
        group_sharding.compiler_options.cache_clear()
