"""When a run saves, and what it says when it stops."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from vcap_jax.system.shutdown import Stopped
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.optimizer import TrainState
from vcap_jax.training.saving import NotFinite, Place, between_steps, check_finite, save_step


class Saved:
    """Stands where a ``Checkpointer`` does and keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.looked = 0
        self.waited = False

    def notice(self) -> None:
        self.looked += 1

    def save(self, step: int, state: Any, data_state: Any, ahead: Any) -> None:
        assert ahead is None
        self.steps.append(step)

    def wait(self) -> None:
        self.waited = True


def test_every_so_many_steps_and_the_last_are_saved() -> None:
    saved: Any = Saved()
    for step in range(1, 8):
        save_step(saved, step, 7, None, Place(None), every=3, stop=False)
    assert saved.steps == [3, 6, 7]
    assert saved.looked == 4


def test_a_stop_saves_the_step_it_comes_after() -> None:
    saved: Any = Saved()
    with pytest.raises(Stopped, match="after step 2 of 7, which is saved"):
        save_step(saved, 2, 7, None, Place(None), every=3, stop=True)
    assert saved.steps == [2]
    assert saved.waited


def test_a_stop_after_the_last_step_is_none() -> None:
    saved: Any = Saved()
    save_step(saved, 7, 7, None, Place(None), every=3, stop=True)
    assert saved.steps == [7]


def test_what_is_done_between_steps_may_ask_for_a_checkpoint_and_hears_of_it(tmp_path: Path) -> None:
    state = TrainState(jnp.asarray(1), {"a": jnp.zeros(1)}, ())
    heard: list[list[int]] = []
    with Checkpointer(tmp_path) as checkpoints:
        between_steps(lambda done, params: None, checkpoints, 1, state, Place(None))
        assert checkpoints.steps() == []
        for _ in range(2):  # the second time it is there
            between_steps(
                lambda done, params: lambda: heard.append(checkpoints.steps()),
                checkpoints,
                2,
                state,
                Place(None),
            )
    assert heard == [[2], [2]]


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_or_infinite_ends_the_run(norm: float) -> None:
    """(Clipping an infinite one to its limit leaves no numbers.)"""
    nothing_saved: Any = SimpleNamespace(latest_step=lambda: None)
    check_finite(1e30, nothing_saved, 3)
    with pytest.raises(NotFinite, match=f"step 3: the norm of the gradient is {norm}, .* No checkpoint was"):
        check_finite(norm, nothing_saved, 3)
