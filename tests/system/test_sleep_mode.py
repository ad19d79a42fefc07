"""Sleep mode as vLLM serves it, against a stand-in over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.fake_clock import FakeClock
from tests.patience import GUARD_S
from tests.sleeping import SharedDevices, Sleeper
from vcap_jax.system.clock import Clock
from vcap_jax.system.event_loop import LoopThread
from vcap_jax.system.sleep_mode import Limit, ServerGone, SleepMode, SleepModeError


@contextmanager
def served(
    routes: list[web.RouteDef], clock: Clock | None = None, first_s: float = GUARD_S, limit_s: float = GUARD_S
) -> Iterator[Any]:
    """A function that runs a coroutine of the sleep mode of a server with these routes."""
    loop = LoopThread("sleep mode")

    async def start() -> tuple[web.AppRunner, aiohttp.ClientSession]:
        app = web.Application()
        app.router.add_routes(routes)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    runner, session = loop.run(start(), GUARD_S)
    mode = SleepMode(
        f"http://127.0.0.1:{runner.addresses[0][1]}",
        "the judge at X",
        lambda: session,
        first=Limit(first_s, "judge.ready_timeout_s"),
        limit=Limit(limit_s, "judge.deadline_s"),
        start="serve.py --sleep-mode",
        clock=clock or Clock(),
        key="set judge.api_key_env",
    )
    try:
        yield mode, lambda work: loop.run(work, GUARD_S), lambda: loop.run(runner.cleanup(), GUARD_S)
    finally:
        loop.run(runner.cleanup(), GUARD_S)
        loop.close(session.close)


def test_a_server_sleeps_and_wakes_up_whole_or_its_weights_first() -> None:
    sleeper = Sleeper("judge", SharedDevices(), state="awake")
    with served(sleeper.routes()) as (mode, run, _):
        assert run(mode.check()) == 0.3
        run(mode.sleep(2))
        assert (sleeper.state, sleeper.level, sleeper.has_weights) == ("asleep", 2, False)
        run(mode.sleep(1))  # again, which changes nothing
        run(mode.wake_up_weights())
        assert sleeper.state == "weights"
        assert run(mode.sleeps())
        run(mode.wake_up_weights())
        run(mode.wake_up())
        assert sleeper.state == "awake"
        run(mode.wake_up_weights())  # of one that is awake
        assert not run(mode.sleeps())
        run(mode.sleep(1))
        run(mode.wake_up())
        assert sleeper.state == "awake"


def test_a_server_without_sleep_mode_is_refused_with_the_command_for_one() -> None:
    with (
        served([]) as (mode, run, _),
        pytest.raises(SleepModeError, match=r"no sleep mode .*404.*serve\.py --sleep-mode"),
    ):
        run(mode.check())
    plain = Sleeper("judge", SharedDevices(), enabled=False, state="awake")
    with served(plain.routes()) as (mode, run, _), pytest.raises(SleepModeError, match="keep its memory"):
        run(mode.check())
    # vLLM's build for CPUs has none, and behaves as if.
    on_cpu = Sleeper("judge", SharedDevices(), enabled=False, state="awake", share=None)
    with served(on_cpu.routes()) as (mode, run, _):
        assert run(mode.check()) is None


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, r"refuses the key \(GET /is_sleeping: 401\): set judge\.api_key_env"),
        (403, r"refuses the key \(GET /is_sleeping: 403\): set judge\.api_key_env"),
        (405, r"no sleep mode .*405.*serve\.py --sleep-mode"),
        (429, r"answers GET /is_sleeping with 429: the reason"),
    ],
)
def test_a_refusal_is_told_by_its_kind(status: int, told: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text="the reason")

    with (
        served([web.get("/is_sleeping", refuse)]) as (mode, run, _),
        pytest.raises(SleepModeError, match=told),
    ):
        run(mode.check())


def test_only_a_servers_first_word_of_how_it_was_started_may_take_long() -> None:
    """vLLM collects what it runs on before it answers that, once."""
    clock, sleeper = FakeClock(), Sleeper("judge", SharedDevices(), state="awake")

    async def slowly() -> None:
        clock.advance(200)

    sleeper.before_info = slowly
    with served(sleeper.routes(), clock, 600, 120) as (mode, run, _):
        assert run(mode.check()) == 0.3
    with (
        served(sleeper.routes(), clock, 150, 120) as (mode, run, _),
        pytest.raises(ServerGone, match=r"/server_info.* within 150 s \(judge\.ready_timeout_s\)"),
    ):
        run(mode.check())

    async def hangs(_: web.Request) -> web.Response:
        clock.advance(200)
        return web.json_response({"is_sleeping": False})

    with (
        served([web.get("/is_sleeping", hangs)], clock, 600, 120) as (mode, run, _),
        pytest.raises(ServerGone, match=r"/is_sleeping .* within 120 s \(judge\.deadline_s\)"),
    ):
        run(mode.check())


def test_a_server_that_keeps_its_memory_is_an_error_and_one_that_is_gone_is_told_apart() -> None:
    stubborn = Sleeper("judge", SharedDevices(), state="awake", broken=["/sleep"])
    with served(stubborn.routes()) as (mode, run, end):
        with pytest.raises(SleepModeError, match=r"does not fall asleep.*500.*--resume"):
            run(mode.sleep(1))
        stubborn.broken = {"/wake_up"}
        with pytest.raises(ServerGone, match="/wake_up was answered with 500"):
            run(mode.wake_up())
        end()
        for work in (mode.sleep(1), mode.wake_up(), mode.check()):
            with pytest.raises(ServerGone, match="failed"):
                run(work)


def test_a_server_that_stays_asleep_or_awake_or_is_another_is_an_error() -> None:
    async def asleep(_: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": True})

    async def done(_: web.Request) -> web.Response:
        return web.json_response({"status": "sleeping"})

    with (
        served([web.get("/is_sleeping", asleep), web.post("/wake_up", done)]) as (mode, run, _),
        pytest.raises(SleepModeError, match="still sleeps after /wake_up"),
    ):
        run(mode.wake_up())

    async def awake(_: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": False})

    with (
        served([web.get("/is_sleeping", awake), web.post("/sleep", done)]) as (mode, run, _),
        pytest.raises(SleepModeError, match="is awake after /sleep"),
    ):
        run(mode.sleep(1))

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    with (
        served([web.get("/is_sleeping", page)]) as (mode, run, _),
        pytest.raises(SleepModeError, match="is this a vLLM server"),
    ):
        run(mode.sleeps())
