"""The clock of other tests: when its time passes and when it stands still."""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_clock import FakeClock


def test_hours_pass_at_once_and_in_order() -> None:
    clock, seen = FakeClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((seconds, clock.now() - 1000))

    async def run() -> None:
        clock.after(7200, lambda: seen.append(("act", clock.now() - 1000)))
        await asyncio.gather(*(sleeper(s) for s in (10_000, 5, 3600)))

    asyncio.run(run())
    assert seen == [(5, 5), (3600, 3600), ("act", 7200), (10_000, 10_000)]
    assert sorted(clock.slept) == [5, 3600, 10_000]


def test_an_error_at_a_moment_ends_the_wait() -> None:
    clock = FakeClock()

    def fail() -> None:
        raise OSError("address already in use")

    async def run() -> None:
        clock.after(5, fail)
        await clock.sleep(10)

    with pytest.raises(asyncio.CancelledError, match=r"after 5 s has failed: .*already in use"):
        asyncio.run(run())


def test_an_event_is_waited_for_as_long_as_is_said() -> None:
    clock = FakeClock()

    async def run() -> None:
        event = asyncio.Event()
        assert not await clock.wait(event, 20)
        assert clock.now() == 1020
        clock.after(5, event.set)
        assert await clock.wait(event, 20)
        assert clock.now() == 1025

    asyncio.run(run())


def test_time_stands_still_while_a_request_is_out_and_its_deadline_is_for_the_test_to_say() -> None:
    clock, moments = FakeClock(), []

    async def run() -> None:
        sleeping = asyncio.create_task(clock.sleep(1))
        async with clock.deadline(10):
            await asyncio.sleep(0.05)
            moments.append((clock.now(), sleeping.done()))
        await sleeping
        moments.append((clock.now(), True))
        asyncio.get_running_loop().call_later(0.01, clock.advance, 10)
        with pytest.raises(TimeoutError):
            async with clock.deadline(10):
                await asyncio.Event().wait()
        moments.append((clock.now(), True))

    asyncio.run(run())
    assert moments == [(1000, False), (1001, True), (1011, True)]


def test_no_time_passes_for_what_nobody_waits_for_any_more() -> None:
    clock = FakeClock()

    async def run() -> None:
        async with clock.deadline(10):
            pass
        assert await clock.wait(event, 20)
        await asyncio.sleep(0.05)

    event = asyncio.Event()
    event.set()
    asyncio.run(run())
    assert clock.now() == 1000


def test_a_cancelled_wait_is_no_timeout() -> None:
    clock = FakeClock()

    async def run() -> None:
        waiting = asyncio.create_task(clock.wait(asyncio.Event(), 5))
        await asyncio.sleep(0)
        waiting.cancel()
        await clock.sleep(10)
        assert waiting.cancelled()

    asyncio.run(run())
