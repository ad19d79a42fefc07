"""An event loop in a thread: results, errors, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from vcap_jax.loop_thread import LoopThread


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
    begun.wait(10)
    loop.close(last)
    loop.close(last)
    assert seen == ["cancelled", "last"]
    assert future.cancelled()
    assert not [thread for thread in threading.enumerate() if thread.name == "worker"]
    with pytest.raises(RuntimeError, match="the worker is closed"):
        loop.submit(last())
