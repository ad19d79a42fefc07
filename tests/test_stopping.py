"""How a phase ends a step: which are saved, and what a signal does."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.patience import GUARD_S
from vcap_jax.stopping import TrainingStopped, save_step, stop_on_signal


class Saved:
    """Stands where a ``Checkpointer`` does and keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.waited = False

    def save(self, step: int, state: Any, data_state: Any) -> None:
        self.steps.append(step)

    def wait(self) -> None:
        self.waited = True


def test_every_so_many_steps_and_the_last_are_saved() -> None:
    saved: Any = Saved()
    for step in range(1, 8):
        save_step(saved, step, 7, None, None, every=3, stop=False)
    assert saved.steps == [3, 6, 7]


def test_a_stop_saves_the_step_it_comes_after() -> None:
    saved: Any = Saved()
    with pytest.raises(TrainingStopped, match="after step 2; continue with --resume"):
        save_step(saved, 2, 7, None, None, every=3, stop=True)
    assert saved.steps == [2]
    assert saved.waited


def test_a_stop_after_the_last_step_is_none() -> None:
    saved: Any = Saved()
    save_step(saved, 7, 7, None, None, every=3, stop=True)
    assert saved.steps == [7]


def test_a_signal_sets_the_event_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signal() as requested:
        assert not requested.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert requested.wait(GUARD_S)
    assert signal.getsignal(signal.SIGTERM) is before
