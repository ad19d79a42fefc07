"""An event loop in a thread: results, errors, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from tests.patience import GUARD_S
from vcap_jax.system import event_loop as module
from vcap_jax.system.event_loop import LoopThread


def test_results_errors_and_patience() -> None:
    loop = LoopThread("worker")

    async def half(x: int) -> float:
        await asyncio.sleep(0)
        return 1 / x

    assert [f.result() for f in [loop.submit(half(2)), loop.submit(half(4))]] == [0.5, 0.25]
    with pytest.raises(ZeroDivisionError):
        loop.run(half(0))
    with pytest.raises(TimeoutError):
        loop.run(asyncio.sleep(60), timeout_s=0.01)
    loop.close()


def test_closing_cancels_what_is_under_way_and_then_does_the_last_thing() -> None:
    loop, seen = LoopThread("worker"), []
    begun = threading.Event()

    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("cancelled")

    async def last() -> None:
        seen.append("last")

    future = loop.submit(long())
    assert begun.wait(GUARD_S)
    loop.close(last)
    loop.close(last)
    assert seen == ["cancelled", "last"]
    assert future.cancelled()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("worker")]
    with pytest.raises(RuntimeError, match="the worker is closed"):
        loop.submit(last())


def test_what_catches_its_cancellation_is_cancelled_again() -> None:
    """As code under a timeout may: whoever closes must not wait for it for ever."""
    loop, caught = LoopThread("worker"), []
    begun = threading.Event()

    async def stubborn() -> None:
        while len(caught) < 2:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                caught.append("again")

    loop.submit(stubborn())
    assert begun.wait(GUARD_S)
    loop.close()
    assert len(caught) == 2


def leave_nothing(loop: LoopThread) -> None:
    """Ends by force what a close has given up."""
    loop._thread.join(GUARD_S)
    if not loop._loop.is_closed():
        for task in asyncio.all_tasks(loop._loop):
            task.cancel()
        loop._loop.run_until_complete(asyncio.sleep(0))
        loop._loop.close()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_close_that_cannot_end_says_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = threading.Event(), threading.Event()

    async def immortal() -> None:
        while not release.is_set():
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    async def never() -> None:
        await asyncio.Event().wait()

    def busy() -> None:
        begun.set()
        release.wait()

    async def elsewhere() -> None:
        await asyncio.to_thread(busy)

    async def standing_still() -> None:
        begun.set()
        release.wait()

    for work, last, message in (
        (immortal, None, "the worker does not end: cancelled for 0.1 s and still under way: .*immortal"),
        (None, never, "the worker does not end: its connections are not closed after 0.1 s"),
        (elsewhere, None, "the worker does not end: a worker thread is busy after 0.1 s"),
        (standing_still, None, "the worker does not end: its event loop has not moved for 0.4 s"),
    ):
        begun.clear()
        release.clear()
        loop = LoopThread("worker", end_s=0.1)
        if work is not None:
            loop.submit(work())
            assert begun.wait(GUARD_S)
        if work is standing_still:
            monkeypatch.setattr(module, "_STILL_S", 0.2)
        with pytest.raises(TimeoutError, match=message):
            loop.close(last)
        release.set()
        leave_nothing(loop)
    gc.collect()  # what a loop that stands still leaves is warned of here
