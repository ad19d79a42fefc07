"""Reading bodies: limits of size, shape, time and memory, and a server that stays awake meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gpu_judge.bodies import Limits, Refusal, parse_object
from gpu_judge.openai_api import build_app
from tests.gpu_judge.hostile_bodies import Hostile
from tests.gpu_judge.requests_of_the_world import MODEL
from tests.gpu_judge.sending import Reply, send

ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
ROUTE = "/v1/chat/completions"


class Patient:
    """A judge that answers when it is told to. asked: how many questions have reached it."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.threads: set[int] = set()

    def answer(self, body: Any) -> dict[str, str]:
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.may_end.wait(60)
        return {"Analysis": "done"}


def served(judge: Any, limits: Limits, ask: Callable[[TestClient[Any, Any]], Awaitable[Any]]) -> Any:
    async def serve() -> Any:
        async with TestClient(TestServer(build_app(judge, MODEL, limits=limits))) as client:
            return await ask(client)

    return asyncio.run(serve())


def test_health_answers_while_a_judgement_is_made() -> None:
    judge = Patient()

    async def ask(client: TestClient[Any, Any]) -> tuple[int, int]:
        question = asyncio.create_task(client.post(ROUTE, json=ASKED))
        await asyncio.to_thread(judge.begun.wait, 60)
        health = (await client.get("/health")).status
        assert not question.done()
        judge.may_end.set()
        return health, (await question).status

    assert served(judge, Limits(), ask) == (200, 200)
    assert judge.threads.isdisjoint({threading.get_ident()})


def test_one_judgement_is_made_at_a_time() -> None:
    judge = Patient()
    judge.may_end.set()

    async def ask(client: TestClient[Any, Any]) -> list[int]:
        answers = await asyncio.gather(*(client.post(ROUTE, json=ASKED) for _ in range(20)))
        return [answer.status for answer in answers]

    assert served(judge, Limits(), ask) == [200] * 20
    assert len(judge.threads) == 1


def test_who_does_not_fit_waits_and_is_sent_away_in_the_end() -> None:
    judge = Patient()
    # Room for one body at a time.
    limits = Limits(held_bytes=1000, least_bytes=600, wait_s=0.05)

    async def ask(client: TestClient[Any, Any]) -> tuple[int, str, int, int]:
        first = asyncio.create_task(client.post(ROUTE, json=ASKED))
        await asyncio.to_thread(judge.begun.wait, 60)
        second = await client.post(ROUTE, json=ASKED)
        judge.may_end.set()
        return (
            second.status,
            second.headers["Retry-After"],
            (await first).status,
            (await client.post(ROUTE, json=ASKED)).status,
        )

    assert served(judge, limits, ask) == (429, "1", 200, 200)


def test_who_does_not_fit_is_read_when_there_is_room() -> None:
    judge = Patient()

    async def ask(client: TestClient[Any, Any]) -> list[int]:
        several = [asyncio.create_task(client.post(ROUTE, json=ASKED)) for _ in range(5)]
        await asyncio.to_thread(judge.begun.wait, 60)
        judge.may_end.set()
        return [(await one).status for one in several]

    assert served(judge, Limits(held_bytes=1000, least_bytes=600), ask) == [200] * 5


@pytest.mark.parametrize("limits", [Limits(silence_s=0.05), Limits(read_s=0.05)], ids=["silence", "whole"])
def test_a_body_that_does_not_come_is_not_waited_for(limits: Limits) -> None:
    stalled = Hostile(name="stalled", make=lambda tiny: b"{", announced=1000, sending="stalled")

    async def ask(client: TestClient[Any, Any]) -> Reply:
        return await asyncio.to_thread(send, str(client.make_url("/")), stalled, b"{", timeout_s=60)

    reply = served(Patient(), limits, ask)
    assert (reply.status, reply.message) == (408, "1 of 1,000 bytes came in time: send the body faster")


def test_a_body_that_is_too_large_is_refused_before_it_comes() -> None:
    large = Hostile(name="large", make=lambda tiny: b"{", announced=101, sending="stalled")

    async def ask(client: TestClient[Any, Any]) -> Reply:
        return await asyncio.to_thread(send, str(client.make_url("/")), large, b"{", timeout_s=60)

    reply = served(Patient(), Limits(body_bytes=100), ask)
    assert reply.status == 413
    assert "101 bytes; at most 100 are read" in reply.message


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"[" * 40, 400, "more than 30 commas and brackets"),
        (b'{"a": "' + b"\\n" * 11 + b'"}', 400, "more than 10 backslashes"),
        ('{"a": "' + "é" * 300 + b'"}'.decode(), 413, "beyond ASCII"),
        (b'{"a": ' + 5000 * b"1" + b"}", 400, "not JSON: Exceeds"),
        (b'{"a": NaN}', 400, "NaN is no JSON number"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 400, "the key 'c' is given twice"),
        (b'\xef\xbb\xbf{"a": 1}', 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"7", 400, "must be a JSON object"),
    ],
)
def test_what_is_no_plain_object_is_refused(raw: bytes | str, status: int, message: str) -> None:
    limits = Limits(values=30, escapes=10, wide_bytes=500)
    with pytest.raises(Refusal, match=message) as refused:
        parse_object(bytearray(raw if isinstance(raw, bytes) else raw.encode()), limits)
    assert refused.value.status == status


def test_depth_is_refused_whatever_is_nested() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        raw = b'{"x": ' + 200_000 * opening + b"1" + 200_000 * closing + b"}"
        with pytest.raises(Refusal, match="nested too deeply"):
            parse_object(bytearray(raw), Limits())


def test_a_body_is_not_held_beside_what_was_read_from_it() -> None:
    body = bytearray('{"a": ["é", 1.5, null, "\\ud800"]}'.encode())
    assert parse_object(body, Limits()) == {"a": ["é", 1.5, None, "\ud800"]}
    assert body == b""
