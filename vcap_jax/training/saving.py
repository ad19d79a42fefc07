"""When a run saves: every so many steps, at its end, before it stops, and before work between steps that asks; never
parameters that have become no numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from vcap_jax.models.family import Params
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonValue
from vcap_jax.system.shutdown import Stopped, TrainingStopped
from vcap_jax.training.checkpoint import Checkpointer, HostArrays
from vcap_jax.training.optimizer import TrainState

Ahead: TypeAlias = Callable[[], HostArrays | None]
"""Gives what a checkpoint keeps of the next step; called only where one is written."""


@dataclass(frozen=True)
class Place:
    """What a checkpoint keeps beside the state. data: the place in the data. ahead: see ``Ahead``."""

    data: JsonValue
    ahead: Ahead = lambda: None


def save_step(
    checkpoints: Checkpointer,
    done: int,
    total: int,
    state: object,
    place: Place,
    *,
    every: int,
    stop: bool,
) -> None:
    """The end of step ``done`` of ``total``: a checkpoint every so many steps, after the last and before a stop.
    In between, a word if the disk has refused the last one.

    stop: of any process, and the same in all. Raises Stopped then, unless all steps are done.
    """
    last = done == total
    if last or stop or done % every == 0:
        checkpoints.save(done, state, place.data, ahead=place.ahead())
    else:
        checkpoints.notice()
    if stop and not last:
        checkpoints.wait()
        raise Stopped(f"stopped after step {done} of {total}, which is saved")


def save_before(checkpoints: Checkpointer, done: int, state: object, place: Place) -> None:
    """Saves the state after ``done`` steps, unless it is saved or there are none, before a run ends in what comes next:
    --resume then begins with that. Returns when it is written."""
    if done > 0 and done not in checkpoints.steps():
        checkpoints.save(done, state, place.data, ahead=place.ahead())
    checkpoints.wait()


def stopped_in(step: int, error: Exception) -> TrainingStopped:
    """What ends a run that cannot do the step after ``step`` ones, which are saved."""
    return TrainingStopped(
        f"step {step + 1}: {error}. The {step} steps before it are saved; once it is mended, continue with --resume"
    )


AfterKeeping: TypeAlias = Callable[[], None] | None
"""What is to be done once the checkpoint of a step is complete; None where none is needed."""


def between_steps(
    work: Callable[[int, Params], AfterKeeping],
    checkpoints: Checkpointer,
    done: int,
    state: TrainState,
    place: Place,
) -> None:
    """``work(done, state.params)`` after ``done`` steps, which are saved if it asks for that by what it returns, and if
    it raises Stopped or TrainingStopped; all of that it must do in all processes alike."""
    try:
        after = work(done, state.params)
    except TrainingStopped:
        save_before(checkpoints, done, state, place)
        raise
    except Stopped as stopped:
        save_before(checkpoints, done, state, place)
        raise Stopped(f"{stopped} after step {done}, which is saved" if done else str(stopped)) from None
    if after is not None:
        save_before(checkpoints, done, state, place)
        after()


def no_work(done: int, params: Params) -> None:
    """Nothing is done between steps."""
    del done, params


class NotFinite(VCapError, ArithmeticError):
    """A gradient was no number, or infinite; the message names the checkpoint from before its update."""


def check_finite(norm: float, checkpoints: Checkpointer, step: int) -> None:
    """Raises NotFinite if the gradient of ``step`` (from 1) was not finite: the parameters are lost, and neither logged
    nor saved in the place of those before. norm: of that gradient, the same in all processes."""
    if math.isfinite(norm):
        return
    kept = checkpoints.latest_step()
    there = "No checkpoint was written before"
    if kept is not None:
        there = f"The checkpoint of step {kept} in {checkpoints.folder} is from before it"
    raise NotFinite(
        f"step {step}: the norm of the gradient is {norm:g}, so what its update has left is not saved. {there}. Begin "
        "a new run, from there or anew, with a lower optimizer.learning_rate or with model.dtype=float32"
    )
