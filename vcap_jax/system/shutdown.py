"""Ctrl-C and SIGTERM: what is in work is finished and saved; a second Ctrl-C ends the process at once.

A command is inside ``stop_on_signal`` from its first line. There the first signal raises ``Stopped`` wherever the main
thread is: what lies on disk is complete or is done again. Work that should be ended in order says so with
``finishing``, asks ``requested`` between two steps, and saves before it raises.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

from vcap_jax.system.errors import VCapError

_Before = Callable[[int, FrameType | None], object] | int | None
"""What a signal did before it was taken over; None where that was not done by Python."""

_MOMENT_S = 0.05

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ended the work, in a state that can be gone on with. The message says how far it had come."""


class TrainingStopped(VCapError, RuntimeError):
    """The run ended before its last step, in a state that --resume continues; the message says why."""

    resumable = True


@contextmanager
def stop_on_signal() -> Iterator[None]:
    """Inside, the first SIGINT or SIGTERM raises Stopped in the main thread, or is kept until ``finishing`` work has
    ended. A SIGINT after it ends the process with status 130, also while a program is being compiled; a SIGTERM does
    not, since schedulers and scripts send it to a process and to its group, and have SIGKILL.

    Does nothing in other threads, or inside another one. A SIGINT that is ignored (a shell's background job) stays so.
    """
    global _handler
    if _handler is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _handler = _Handler()
    try:
        with _handler.installed():
            yield
    finally:
        _handler = None


@contextmanager
def finishing(what: str) -> Iterator[None]:
    """Inside, a signal only makes ``requested`` true. Leaving raises Stopped if one came and nobody has raised it.

    what: is finished first, as the user is told ("the step in work").
    """
    with stop_on_signal():
        handler = _handler
        if handler is None:  # not the main thread: nobody asks
            yield
            return
        outer, handler.finishing = handler.finishing, what
        try:
            yield
        finally:
            handler.finishing = outer
        if outer is None:
            raise_if_requested()


def requested() -> bool:
    """Whether a signal has come."""
    return _handler is not None and _handler.received is not None


def raise_if_requested(how_far: str = "stopped") -> None:
    """Raises Stopped with ``how_far`` if a signal has come."""
    if requested():
        raise Stopped(how_far)


def stopped_by(error: BaseException) -> bool:
    """Whether a signal is behind an error: a library that is stopped while it is imported raises one of its own. What
    goes wrong afterwards, such as a last checkpoint, is an error of its own."""
    return isinstance(error, Stopped) or (isinstance(error, ImportError) and requested())


def exit_status() -> int:
    """Of a command that a signal ended, as shells have it: 128 + the number of the signal."""
    received = None if _handler is None else _handler.received
    return 128 + (signal.SIGINT if received is None else received)


class _Handler:
    """received: the first signal. finishing: what is finished before it counts; None raises at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.finishing: str | None = None
        self._sent_again: deque[int] = deque()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes the signals over. A thread reads their numbers from a pipe: Python's own handlers run between two of
        its instructions, and a compilation of minutes is a single one."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        ours = [s for s in SIGNALS if not (s is signal.SIGINT and signal.getsignal(s) is signal.SIG_IGN)]
        before: dict[int, _Before] = {number: signal.signal(number, self._noted) for number in ours}
        pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        watcher = threading.Thread(target=self._watch, args=(reading, ours), name="signals", daemon=True)
        watcher.start()
        unraisable = sys.unraisablehook
        sys.unraisablehook = partial(self._discarded, unraisable)
        try:
            yield
        finally:
            sys.unraisablehook = unraisable
            signal.set_wakeup_fd(pipe_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(writing)  # ends the thread
            watcher.join()
            os.close(reading)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            return  # ``_watch`` decides about a second one
        self.received = number
        if self.finishing is None:
            raise Stopped("stopped")

    def _discarded(
        self, others: Callable[[sys.UnraisableHookArgs], object], found: sys.UnraisableHookArgs, /
    ) -> None:
        """The signal met code in which Python lets no exception out, such as JAX's at each garbage collection. It is
        sent again in a moment, when that has ended."""
        number = self.received
        if not isinstance(found.exc_value, Stopped) or number is None:
            others(found)
            return
        self.received = None
        # One for each: a long collection keeps the watching thread waiting, and may meet the signal twice meanwhile.
        self._sent_again.append(number)
        timer = threading.Timer(_MOMENT_S, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    def _watch(self, reading: int, ours: list[signal.Signals]) -> None:
        told = False
        while got := os.read(reading, 1):
            if got[0] not in ours:
                continue
            if self._sent_again:
                self._sent_again.popleft()  # our own
            elif not told:
                told = True
                work = "what is in work" if self.finishing is None else self.finishing
                _tell(f"stopping: {work} is finished first; Ctrl-C once more ends at once")
            elif got[0] == signal.SIGINT:
                _tell("ended at once; what was saved before stays")
                os._exit(128 + signal.SIGINT)


_handler: _Handler | None = None


def _tell(text: str) -> None:
    # Past Python's buffers, whose locks the main thread may hold; and nobody may be listening any more.
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
