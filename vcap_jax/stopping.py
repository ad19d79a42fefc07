"""How a training phase ends before its last step: a signal lets it finish its step, save and say how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vcap_jax.checkpoint import Checkpointer
from vcap_jax.errors import VCapError


class TrainingStopped(VCapError, RuntimeError):
    """The run ended before its last step, in a state that --resume continues; the message says why."""


@contextmanager
def stop_on_signal(signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> Iterator[threading.Event]:
    """An event that is set when one of ``signals`` arrives, so that a step is finished and saved first."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {s: signal.signal(s, lambda *_: event.set()) for s in signals}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def save_step(
    checkpoints: Checkpointer, done: int, total: int, state: Any, data_state: Any, *, every: int, stop: bool
) -> None:
    """The end of step ``done`` of ``total``: a checkpoint every so many steps, after the last and before a stop.

    stop: of any process, and the same in all. Raises TrainingStopped then, unless all steps are done.
    """
    last = done == total
    if last or stop or done % every == 0:
        checkpoints.save(done, state, data_state)
    if stop and not last:
        checkpoints.wait()
        raise TrainingStopped(f"stopped by a signal after step {done}; continue with --resume")
