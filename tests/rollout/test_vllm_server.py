"""What is said while a rollout server is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.fake_clock import FakeClock
from vcap_jax.rollout.config import VllmConfig
from vcap_jax.rollout.engine import RolloutError
from vcap_jax.rollout.vllm_server import ServerLost, VllmServer, first_answer_limit, rollout_session


def ask(
    handler: Callable[[web.Request], Any], clock: FakeClock, work: Callable[[VllmServer], Any]
) -> list[str]:
    """What ``work`` with a server that answers everything by ``handler`` has to say."""
    said: list[str] = []

    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        async with TestServer(app) as served, aiohttp.ClientSession() as session:
            server = VllmServer(
                str(served.make_url("")),
                session,
                VllmConfig(outage_timeout_s=60),
                say=said.append,
                clock=clock,
            )
            await work(server)

    asyncio.run(run())
    return said


def test_a_server_that_takes_long_to_say_what_it_holds_is_told_every_ten_seconds(clock: FakeClock) -> None:
    async def slow(request: web.Request) -> web.Response:
        for _ in range(5):
            clock.advance(5)
            await asyncio.sleep(0.01)
        return web.json_response({"weight_version": "one"})

    said = ask(slow, clock, lambda server: server.version())
    assert [
        text.partition(" for ")[2].partition(";")[0] for text in (t.partition("server")[2] for t in said)
    ] == [
        "10 s: GET /weight_info is not answered",
        "20 s: GET /weight_info is not answered",
    ]
    assert all(text.endswith("; giving up after 600 s (rollout.vllm.timeout_s)") for text in said)


def test_groups_are_waited_for_a_minute_before_it_is_told_once_for_all(clock: FakeClock) -> None:
    async def slow(request: web.Request) -> web.Response:
        body = await request.json()
        if body["group"] == 0:
            for _ in range(15):
                clock.advance(5)
                await asyncio.sleep(0.01)
            answered.set()
        await answered.wait()
        return web.json_response({})

    async def groups(server: VllmServer) -> None:
        await asyncio.gather(*(server.complete({"group": number}) for number in range(8)))

    answered = asyncio.Event()
    said = ask(slow, clock, groups)
    assert len(said) in (1, 2)
    assert "for 60 s: it has 8 groups to answer" in said[0]


def test_another_try_is_told_with_its_reason(clock: FakeClock) -> None:
    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=503, text="queue full")

    async def group(server: VllmServer) -> None:
        with pytest.raises(RolloutError, match="answered 503: queue full"):
            await server.complete({})

    said = ask(busy, clock, group)
    assert [text.partition("answered ")[2] for text in said] == [
        "503: queue full: asked again in 1 s, 2 of 3 tries left",
        "503: queue full: asked again in 2 s, 1 of 3 tries left",
    ]


def test_a_lost_server_is_told_from_one_that_refuses(clock: FakeClock) -> None:
    async def answer(request: web.Request) -> web.Response:
        if (await request.json())["how"] == "gone":
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=400, text="no")

    async def both(server: VllmServer) -> None:
        with pytest.raises(ServerLost, match=r"/v1/chat/completions failed: the server closed"):
            await server.complete({"how": "gone"})
        with pytest.raises(RolloutError, match="answered 400: no") as refused:
            await server.complete({"how": "refused"})
        assert not isinstance(refused.value, ServerLost)

    assert ask(answer, clock, both) == []


def test_a_lost_server_is_waited_for_until_it_answers(clock: FakeClock) -> None:
    asked = []

    async def starting(request: web.Request) -> web.Response:
        asked.append(request.path)
        clock.advance(5)
        return (
            web.Response(status=503) if len(asked) < 6 else web.json_response({"weight_version": "default"})
        )

    said = ask(starting, clock, lambda server: server.back())
    assert asked == ["/weight_info"] * 6
    assert said
    assert all("answered 503" in text for text in said)
    assert all(text.endswith("; giving up after 60 s (rollout.vllm.outage_timeout_s)") for text in said)


def test_a_server_that_stays_away_ends_the_step(clock: FakeClock) -> None:
    async def gone(_: web.Request) -> web.Response:
        clock.advance(5)
        return web.Response(status=502, text="nobody there")

    async def wait(server: VllmServer) -> None:
        with pytest.raises(
            RolloutError,
            match=r"not answer for 60 s \(rollout\.vllm\.outage_timeout_s\).*nobody there.*--resume",
        ) as end:
            await server.back()
        assert not isinstance(end.value, ServerLost)

    ask(gone, clock, wait)


@pytest.mark.parametrize(
    ("held", "lost"),
    [("default", True), ("vcap-rollout-a-3-reading", True), ("vcap-rollout-b-3-reading", False)],
)
def test_a_server_that_reads_the_runs_own_weights_is_no_other_runs(
    clock: FakeClock, held: str, lost: bool
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"weight_version": held})

    async def expect(server: VllmServer) -> None:
        with pytest.raises(RolloutError, match=held) as told:
            await server.expect("vcap-rollout-a-3")
        assert (isinstance(told.value, ServerLost), "another run uses it" in str(told.value)) == (
            lost,
            not lost,
        )

    ask(answer, clock, expect)


@pytest.mark.parametrize(
    ("outage_s", "limit"),
    [(600, (600, "rollout.vllm.outage_timeout_s")), (0, (300, "rollout.vllm.load_timeout_s"))],
)
def test_a_servers_first_word_may_take_as_long_as_its_start(
    outage_s: float, limit: tuple[float, str]
) -> None:
    assert first_answer_limit(VllmConfig(outage_timeout_s=outage_s)) == limit


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_server_that_closes_kept_connections_is_not_taken_for_a_lost_one() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # As vLLM: the answer promises to keep the connection, and a request that comes after a rest is cut off.
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"weight_version": "one"}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: keep-alive\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await reader.read(1)
        writer.transport.abort()

    async def run() -> None:
        served = await asyncio.start_server(once, "127.0.0.1", 0)
        port = served.sockets[0].getsockname()[1]
        async with served, rollout_session() as session:
            server = VllmServer(f"http://127.0.0.1:{port}", session, VllmConfig(), say=print)
            for _ in range(3):
                await server.complete({"messages": []})

    asyncio.run(run())
