"""What a signal does: at once, after the work that is to be finished, and the second time."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import until
from tests.signals import ask_to_stop, in_foreground
from vcap_jax.system.shutdown import (
    Stopped,
    finishing,
    raise_if_requested,
    requested,
    stop_on_signal,
    stopped_by,
)

ROOT = Path(__file__).resolve().parents[2]
FOR_EVER_S = 600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_where_the_work_is(number: signal.Signals) -> None:
    with in_foreground():
        before = signal.getsignal(number)
        with stop_on_signal(), pytest.raises(Stopped):
            ask_to_stop(number)
        assert signal.getsignal(number) is before
    assert not requested()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_is_to_be_finished_asks_and_then_ends(number: signal.Signals) -> None:
    done = []

    def work() -> None:
        with finishing("the step in work"):
            for step in range(1, 10):
                if step == 3:
                    ask_to_stop(number)
                done.append(step)
                raise_if_requested(f"after step {step}")

    with in_foreground(), pytest.raises(Stopped, match="after step 3"):
        work()
    assert done == [1, 2, 3]
    assert not requested()


def test_a_signal_that_nobody_asked_about_is_not_lost() -> None:
    """It came after the last question: what follows must not begin."""

    def work() -> None:
        with finishing("the last step"):
            ask_to_stop()

    with pytest.raises(Stopped):
        work()


def test_finishing_inside_finishing_leaves_the_end_to_the_outer_one() -> None:
    reached = []

    def work() -> None:
        with finishing("all of it"):
            with finishing("a part"):
                ask_to_stop()
            reached.append("after the part")

    with pytest.raises(Stopped):
        work()
    assert reached == ["after the part"]


def test_a_background_job_goes_on_ignoring_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with finishing("a step"):
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert not requested()
    finally:
        signal.signal(signal.SIGINT, before)


BUSY = """
import ctypes, os, signal, sys
from vcap_jax.system.shutdown import finishing
reading, writing = os.pipe()
with finishing("the step in work"):
    signal.siginterrupt(signal.SIGINT, False)  # as in a compilation: the interpreter does not come to a word
    signal.siginterrupt(signal.SIGTERM, False)
    print("busy", flush=True)
    ctypes.CDLL(None).read(reading, ctypes.create_string_buffer(1), 1)
"""


def test_a_second_ctrl_c_ends_at_once_also_in_the_middle_of_a_compilation() -> None:
    with in_foreground():
        process = subprocess.Popen(
            [sys.executable, "-c", BUSY], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "busy\n"
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == "\n"
    assert "the step in work is finished first; Ctrl-C once more ends at once" in process.stderr.readline()
    # Schedulers send it to a process and to its group: as often as it comes, it is one stop.
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.wait(FOR_EVER_S) == 130
    assert process.stderr.read().strip() == "ended at once; what was saved before stays"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_garbage_collection_is_not_lost(number: signal.Signals) -> None:
    """Python discards what is raised there, and JAX has code of its own run at each."""
    met = []

    def callback(phase: str, info: object) -> None:
        if phase == "start" and not met:
            met.append(phase)
            ask_to_stop(number)

    def work() -> None:
        with stop_on_signal():
            gc.callbacks.append(callback)  # not before: Python may collect garbage at any time
            gc.collect()
            until(lambda: False, "the signal")

    try:
        with in_foreground(), pytest.raises(Stopped):
            work()
    finally:
        gc.callbacks.remove(callback)
    assert met == ["start"]


def test_a_signal_is_known_behind_the_error_that_a_library_makes_of_it() -> None:
    def imported() -> None:
        try:
            ask_to_stop()
        except Stopped as stopped:
            raise ImportError("an error while initializing the extension") from stopped

    with in_foreground(), stop_on_signal():
        with pytest.raises(ImportError) as found:
            imported()
        assert stopped_by(found.value)
        full = OSError("No space left on device")
        full.__context__ = Stopped("stopped")  # of the last checkpoint
        assert not stopped_by(full)
    assert not stopped_by(ImportError("no module"))
