"""A train state's parts wait in the host's memory while captions are drawn, and are back for the update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.grpo.waiting import WaitingState
from vcap_jax.parallel.sharding import MeshConfig, Placement
from vcap_jax.rollout.config import Offloaded
from vcap_jax.training.optimizer import OptimizerConfig, OptimizerPrograms, TrainState, build_optimizer

PROGRAMS = OptimizerPrograms(build_optimizer(OptimizerConfig(warmup_ratio=0, learning_rate=0.1), 10))
PLACEMENT = Placement.build(MeshConfig(), jax.devices()[:2])


def beginning() -> TrainState:
    weights = {"kernel": jnp.linspace(-1, 1, 32).reshape(8, 4), "norm": jnp.ones(4)}
    return PROGRAMS.initial_state(PLACEMENT.state(weights), PLACEMENT)


def where(held: WaitingState) -> tuple[str, str]:
    """Of parameters, and of the optimizer's part."""
    state = held.state
    found = []
    for part in (state.params, state.opt_state):
        (kind,) = {x.sharding.memory_kind for x in jax.tree.leaves(part)}
        assert kind is not None
        found.append(kind)
    return found[0], found[1]


def stepped(held: WaitingState) -> None:
    """An update by a gradient that is the parameters themselves."""
    state, _ = PROGRAMS.apply(held.state, jax.tree.map(lambda x: x + 0, held.state.params))
    held.updated(state)


@pytest.mark.parametrize("offload", [(), ("optimizer",), ("parameters",), ("optimizer", "parameters")])
def test_parts_wait_where_they_are_told_to_and_a_state_becomes_the_same(
    offload: tuple[Offloaded, ...],
) -> None:
    host, device = "pinned_host", "device"
    optimizer = host if "optimizer" in offload else device
    parameters = host if "parameters" in offload else device
    plain = beginning()
    held = WaitingState(beginning(), offload)
    for _ in range(3):
        assert where(held) == (device, optimizer)  # where a step is logged, saved and evaluated
        before = held.state
        held.make_room()
        assert where(held) == (parameters, optimizer)
        gone = [x.is_deleted() for x in jax.tree.leaves(before.params)]
        assert all(gone) if "parameters" in offload else not any(gone)
        held.drawn()
        assert where(held) == (device, optimizer)
        held.due()
        assert where(held) == (device, device)
        stepped(held)
        plain, _ = PROGRAMS.apply(plain, jax.tree.map(lambda x: x + 0, plain.params))
    for ours, theirs in zip(jax.tree.leaves(held.state), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_nothing_is_compiled_again_for_a_state_that_was_away() -> None:
    programs = OptimizerPrograms(build_optimizer(OptimizerConfig(), 10))
    state = programs.initial_state(beginning().params, PLACEMENT)
    held = WaitingState(state, ("optimizer", "parameters"))
    compiled: list[Any] = []
    for _ in range(3):
        held.make_room()
        held.drawn()
        held.due()
        moved, _ = programs.apply(held.state, programs.zeros(held.state.params))
        held.updated(moved)
        jitted = programs.apply._jitted
        assert jitted is not None
        compiled.append(jitted._cache_size())
    assert compiled == [1, 1, 1]


def test_parameters_that_captions_are_drawn_with_stay() -> None:
    held = WaitingState(beginning(), ("parameters",), lambda params: [params["norm"]])
    norm = held.state.params["norm"]
    held.make_room()
    assert held.state.params["norm"] is norm
    assert not norm.is_deleted()
    assert held.state.params["kernel"].sharding.memory_kind == "pinned_host"
    held.drawn()
    assert held.state.params["norm"] is norm
