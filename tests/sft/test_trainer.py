"""The loop of supervised training, with an update that computes nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vcap_jax.run.log import SilentLog
from vcap_jax.sft.config import SFTConfig
from vcap_jax.sft.trainer import StepBatches, SupervisedTraining
from vcap_jax.training.checkpoint import Checkpointer
from vcap_jax.training.finite import NotFinite
from vcap_jax.training.optimizer import TrainState

NOTHING: Any = None


class Data:
    """Batches without samples."""

    skipped_total = 0

    def __next__(self) -> Any:
        return SimpleNamespace(examples=(), skipped=())

    def get_state(self) -> dict[str, int]:
        return {}


class Programs:
    """Counts steps; the third one's gradient is no number."""

    def update(self, state: TrainState, *_: Any) -> tuple[TrainState, dict[str, Any]]:
        done = int(state.step) + 1
        norm = jnp.float32(np.nan if done == 3 else 1)
        return TrainState(jnp.int32(done), state.params, state.opt_state), {
            "nll": jnp.float32(1),
            "grad_norm": norm,
        }


def test_parameters_that_are_no_numbers_are_neither_logged_nor_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = StepBatches(micro=(), prompts=1, captions=1, positions=2)
    monkeypatch.setattr(SupervisedTraining, "batches", lambda *_: empty)
    logged: list[Any] = []

    class Log(SilentLog):
        def step(self, report: Any) -> None:
            logged.append(report["step"])

    data: Any = Data()
    programs: Any = Programs()
    placement: Any = SimpleNamespace(local=lambda: None)
    state = TrainState(step=jnp.int32(0), params={"w": jnp.float32(1)}, opt_state=())
    with Checkpointer(tmp_path) as checkpoints:
        training = SupervisedTraining(
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
            log=Log(),
            placement=placement,
            learning_rate=lambda step: 0.1,
            save_every=1,
        )
        with pytest.raises(NotFinite, match=r"^step 3: .* nan.* checkpoint of step 2 "):
            training.run(state)
        assert checkpoints.steps() == [1, 2]
    assert logged == [1, 2]
