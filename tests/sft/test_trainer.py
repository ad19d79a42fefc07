"""The loop of supervised training, with an update that computes nothing."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.data.errors import MediaError
from vcap_jax.run.log import SilentLog
from vcap_jax.sft.config import SFTConfig
from vcap_jax.sft.trainer import StepBatches, SupervisedTraining
from vcap_jax.system.shutdown import TrainingStopped
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.optimizer import TrainState
from vcap_jax.training.saving import NotFinite

NOTHING: Any = None


class Data:
    """Batches without samples; one of them cannot be read."""

    skipped_total = 0

    def __init__(self, broken: int | None = None) -> None:
        self._read, self._broken = 0, broken

    def __next__(self) -> Any:
        self._read += 1
        if self._read == self._broken:
            raise MediaError("sample 7: 7.png: cut")
        return SimpleNamespace(examples=(), skipped=())

    def get_state(self) -> dict[str, int]:
        return {"read": self._read}


class Programs:
    """Counts steps; the gradient of one of them is no number."""

    def __init__(self, lost: int | None = None) -> None:
        self._lost = lost

    def update(self, state: TrainState, *_: Any) -> tuple[TrainState, dict[str, Any]]:
        done = int(state.step) + 1
        norm = jnp.float32(np.nan if done == self._lost else 1)
        return TrainState(jnp.int32(done), state.params, state.opt_state), {
            "nll": jnp.float32(1),
            "grad_norm": norm,
        }


class Log(SilentLog):
    """Keeps the steps that it is told of."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def step(self, report: Any) -> None:
        self.steps.append(report["step"])


@pytest.fixture(autouse=True)
def _empty_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = StepBatches(micro=(), prompts=1, captions=1, positions=2)
    monkeypatch.setattr(SupervisedTraining, "batches", lambda *_: empty)


def run(checkpoints: Checkpointer, log: Log, data: Any, programs: Any, save_every: int) -> None:
    placement: Any = SimpleNamespace(local=lambda: None)
    state = TrainState(step=jnp.int32(0), params={"w": jnp.float32(1)}, opt_state=())
    SupervisedTraining(
        config=SFTConfig(),
        total_steps=4,
        programs=programs,
        frozen=NOTHING,
        data=data,
        targets=NOTHING,
        max_tokens=1,
        buckets=NOTHING,
        processor=NOTHING,
        checkpoints=checkpoints,
        log=log,
        placement=placement,
        learning_rate=lambda step: 0.1,
        save_every=save_every,
    ).run(state)


def test_a_steps_batches_are_gone_when_the_next_step_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold all pixels of a step, on the devices too."""
    made, alive = list[Any](), list[int]()

    def batches(*_: Any) -> StepBatches:
        alive.append(sum(one() is not None for one in made))
        new = StepBatches(micro=(), prompts=1, captions=1, positions=2)
        made.append(weakref.ref(new))
        return new

    monkeypatch.setattr(SupervisedTraining, "batches", batches)
    with Checkpointer(tmp_path) as checkpoints:
        run(checkpoints, Log(), Data(), Programs(), save_every=9)
    assert alive == [0] * 4


def test_parameters_that_are_no_numbers_are_neither_logged_nor_saved(tmp_path: Path) -> None:
    log = Log()
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(NotFinite, match=r"^step 3: .* nan.* checkpoint of step 2 "):
            run(checkpoints, log, Data(), Programs(lost=3), save_every=1)
        assert checkpoints.steps() == [1, 2]
    assert log.steps == [1, 2]


def test_what_was_done_before_a_sample_that_cannot_be_read_is_saved(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(TrainingStopped, match=r"^step 3: sample 7: .* 2 steps before it are saved"):
            run(checkpoints, Log(), Data(broken=3), Programs(), save_every=9)
        assert checkpoints.steps() == [2]
        _, place = checkpoints.restore({"step": np.zeros((), np.int32)}, partial=True)
        assert place == {"read": 2}
