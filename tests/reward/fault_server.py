"""An OpenAI-compatible judge on 127.0.0.1 that is right and, as often as it is told, goes wrong.

Behind it stands a real scorer. ``plan`` decides for each request whether it is answered or which fault it meets;
every fault that carries scores carries wrong ones, so a fault taken for an answer shows as a wrong reward.
Requests are logged, and a log entry says what became of each try.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

from aiohttp import web

from gpu_judge.openai_api import Judge, completion
from tests.listening import accept_no_more
from tests.patience import GUARD_S
from tests.reward.scripted_judge import greets
from vcap_jax.system.event_loop import LoopThread

MODEL = "judge-behind-faults"
_SCORES = ("Reasonability", "Correctness", "Completeness", "Text Quality")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One chat request that arrived.

    question: hash of its messages, the same for every try. attempt: its number among the tries, from 0.
    fault: what it met; None where it was answered rightly.
    """

    question: str
    attempt: int
    fault: str | None


Plan = Callable[[str, int], str | None]
"""(question, attempt) -> the fault it meets, or None."""


def question_of(body: Mapping[str, Any]) -> str:
    """Tells questions apart by what is asked, whatever the sampling settings of a try."""
    return blake2b(json.dumps(body["messages"], sort_keys=True).encode(), digest_size=12).hexdigest()


class FaultServer:
    """Serves from a thread and loop of its own; use as a context manager.

    judge: the scorer. plan: which request meets which fault. deadline_s: the client's, by which slow and late answers
    are timed. With ``refuse_every`` the listening socket is closed for ``refuse_s`` after every so many requests and
    all idle connections with it, so that further ones are refused by the operating system. A greeting meets no fault.
    """

    def __init__(
        self,
        judge: Judge,
        plan: Plan = lambda question, attempt: None,
        *,
        deadline_s: float = 1.0,
        refuse_every: int = 0,
        refuse_s: float = 0.02,
    ) -> None:
        self.calls: list[Call] = []
        self.truth: dict[str, Mapping[str, Any]] = {}
        self.outages = 0
        self.plan = plan
        self._judge, self._deadline = judge, deadline_s
        self._refuse_every, self._refuse_s = refuse_every, refuse_s
        self._attempts: dict[str, int] = {}
        self._last: Mapping[str, Any] | None = None
        self._shut: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._loop = LoopThread("fault server")
        self._loop.run(self._start(), GUARD_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._stop(), GUARD_S)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen(0)
        self.url = f"http://127.0.0.1:{self.port}"

    async def _listen(self, port: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = int(self._socket.getsockname()[1])
        self._site = web.SockSite(self._runner, self._socket)
        await self._site.start()

    async def _stop(self) -> None:
        if self._shut is not None:
            self._shut.cancel()
            await asyncio.gather(self._shut, return_exceptions=True)
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if greets(body):
            return web.json_response(completion(body, {}, MODEL))
        question = question_of(body)
        attempt = self._attempts.get(question, 0)
        self._attempts[question] = attempt + 1
        fault = self.plan(question, attempt)
        self.calls.append(Call(question=question, attempt=attempt, fault=fault))
        verdict = self.truth.get(question)
        if verdict is None:
            verdict = self.truth[question] = self._judge.answer(body)
        if self._refuse_every and len(self.calls) % self._refuse_every == 0 and self._shut is None:
            self._shut = asyncio.create_task(self._refuse_for_a_while())
        # As vLLM does it: the identity of a request, where it brings one, comes back in its answer.
        good = completion(body, verdict, MODEL, request.headers.get("X-Request-Id"))
        if fault is None:
            self._last = good
            return web.json_response(good)
        try:
            return await FAULTS[fault](Fault(self, request, good, dict(verdict)))
        except ConnectionError:  # the client has given up before the fault was ready
            return web.Response()

    async def _refuse_for_a_while(self) -> None:
        self.outages += 1
        await accept_no_more(self._socket)
        await self._site.stop()
        server = self._runner.server
        assert server is not None
        for connection in list(server.connections):
            if connection._current_request is None and connection.transport is not None:
                connection.transport.close()
        await asyncio.sleep(self._refuse_s)
        await self._listen(self.port)
        self._shut = None


class Fault:
    """What a fault has to work with: the request, the right answer and ways to send something else.

    foreign: the whole answer to another request, None before there was any.
    """

    def __init__(
        self, server: FaultServer, request: web.Request, good: dict[str, Any], verdict: dict[str, Any]
    ) -> None:
        self.request, self.good, self.verdict = request, good, verdict
        self.deadline = server._deadline
        self.foreign = server._last

    @property
    def wrong(self) -> dict[str, Any]:
        """The verdict with every score off by three."""
        return {key: (value + 3) % 11 if key in _SCORES else value for key, value in self.verdict.items()}

    def status(self, status: int, **headers: str) -> web.Response:
        error = {"message": f"injected {status}", "type": "injected", "code": status}
        return web.json_response({"error": error}, status=status, headers=headers)

    def says(self, content: str | None, finish_reason: str = "stop") -> web.Response:
        """A well-formed completion with this text."""
        message = {"role": "assistant", "content": content}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        return web.json_response({**self.good, "choices": [choice]})

    def scores(self, **changes: Any) -> web.Response:
        """The wrong verdict with some values replaced."""
        renamed = {key.replace("_", " "): value for key, value in changes.items()}
        return self.says(json.dumps({**self.wrong, **renamed}))

    def cut(self, *, hard: bool) -> None:
        """Ends the connection, with a reset if ``hard``."""
        transport = self.request.transport
        assert transport is not None
        if hard:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.close()

    async def stream(self, chunks: Any, content_type: str = "application/json") -> web.StreamResponse:
        """Sends chunks (an asynchronous iterable of bytes) for as long as the client listens."""
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(self.request)
        async for chunk in chunks:
            try:
                await response.write(chunk)
            except (ConnectionError, RuntimeError):
                break
        return response


async def _reset(fault: Fault) -> web.StreamResponse:
    fault.cut(hard=True)
    return web.Response()


async def _closed(fault: Fault) -> web.StreamResponse:
    fault.cut(hard=False)
    return web.Response()


async def _slow(fault: Fault) -> web.StreamResponse:
    await asyncio.sleep(0.4 * fault.deadline)
    return web.json_response(fault.good)


async def _late(fault: Fault) -> web.StreamResponse:
    """Answers, wrongly, to nobody: whoever reads it later reads the scores of another request."""
    await asyncio.sleep(1.3 * fault.deadline)
    return fault.scores()


async def _hung(fault: Fault) -> web.StreamResponse:
    await asyncio.sleep(60 * fault.deadline)
    return fault.scores()


async def _drip(fault: Fault) -> web.StreamResponse:
    """A byte at a time: no read ever waits long, the whole takes for ever."""

    async def bytes_of() -> Any:
        for byte in json.dumps(fault.good).encode():
            yield bytes([byte])
            await asyncio.sleep(fault.deadline / 20)

    return await fault.stream(bytes_of())


async def _white_body(fault: Fault) -> web.StreamResponse:
    async def spaces() -> Any:
        while True:
            yield b" \n" * 512
            await asyncio.sleep(fault.deadline / 50)

    return await fault.stream(spaces())


async def _flood(fault: Fault) -> web.StreamResponse:
    """White space as fast as the connection takes it: a client must bound what it keeps."""

    async def spaces() -> Any:
        block = b" " * 2**20
        while True:
            yield block

    return await fault.stream(spaces())


async def _white_text(fault: Fault) -> web.StreamResponse:
    return fault.says('{"Analysis": "' + "\n \t" * 2000, "length")


async def _half_body(fault: Fault) -> web.StreamResponse:
    """Fewer bytes than announced."""
    raw = json.dumps(fault.good).encode()
    response = web.StreamResponse(
        headers={"Content-Type": "application/json", "Content-Length": str(len(raw))}
    )
    await response.prepare(fault.request)
    await response.write(raw[: len(raw) // 2])
    fault.cut(hard=False)
    return response


async def _half_chunks(fault: Fault) -> web.StreamResponse:
    """A chunked answer, whole as JSON, whose end never comes; its scores are wrong."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(fault.request)
    fault.good["choices"][0]["message"]["content"] = json.dumps(fault.wrong)
    await response.write(json.dumps(fault.good).encode())
    fault.cut(hard=False)
    return response


async def _half_json(fault: Fault) -> web.StreamResponse:
    raw = json.dumps(fault.good)
    return web.Response(text=raw[: len(raw) // 2], content_type="application/json")


async def _html(fault: Fault) -> web.StreamResponse:
    page = f"<html><body>Bad gateway<pre>{json.dumps(fault.wrong)}</pre></body></html>"
    return web.Response(text=page, content_type="text/html")


async def _event_stream(fault: Fault) -> web.StreamResponse:
    delta = {
        "choices": [{"index": 0, "delta": {"content": json.dumps(fault.wrong)}, "finish_reason": "stop"}]
    }
    return web.Response(
        text=f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n", content_type="text/event-stream"
    )


async def _plain_text(fault: Fault) -> web.StreamResponse:
    """The right answer under the wrong name: usable."""
    return web.Response(text=json.dumps(fault.good), content_type="text/plain")


async def _foreign(fault: Fault) -> web.StreamResponse:
    return fault.status(503) if fault.foreign is None else web.json_response(fault.foreign)


def _content(
    write: Callable[[Fault], web.StreamResponse],
) -> Callable[[Fault], Awaitable[web.StreamResponse]]:
    async def send(fault: Fault) -> web.StreamResponse:
        return write(fault)

    return send


def _json(fault: Fault) -> str:
    return json.dumps(fault.wrong)


def _without(fault: Fault, key: str) -> str:
    return json.dumps({k: v for k, v in fault.wrong.items() if k != key})


FAULTS: Mapping[str, Callable[[Fault], Awaitable[web.StreamResponse]]] = {
    # the connection
    "reset": _reset,
    "closed": _closed,
    "slow": _slow,
    "late": _late,
    "hung": _hung,
    "drip": _drip,
    "half a body": _half_body,
    "half the chunks": _half_chunks,
    # the status
    "400": _content(lambda f: f.status(400)),
    "408": _content(lambda f: f.status(408)),
    "429": _content(lambda f: f.status(429)),
    "429, retry after": _content(lambda f: f.status(429, **{"Retry-After": "0.05"})),
    "500": _content(lambda f: f.status(500)),
    "502": _content(lambda f: f.status(502)),
    "503": _content(lambda f: f.status(503)),
    "503, retry after": _content(lambda f: f.status(503, **{"Retry-After": "0.05"})),
    # the body
    "half of the JSON": _half_json,
    "HTML": _html,
    "event stream": _event_stream,
    "plain text": _plain_text,
    "empty body": _content(lambda f: web.Response(content_type="application/json")),
    "white space for ever": _white_body,
    "white space, a flood": _flood,
    "no choices": _content(lambda f: web.json_response({**f.good, "choices": []})),
    # the answer
    "white space until the limit": _white_text,
    "length": _content(lambda f: f.says(_json(f), "length")),
    "content filter": _content(lambda f: f.says(_json(f), "content_filter")),
    "null": _content(lambda f: f.says(None)),
    "prose": _content(lambda f: f.says("The caption is good. I would give it a 9 out of 10.")),
    "prose around": _content(
        lambda f: f.says(f"Here it is:\n```json\n{json.dumps(f.verdict)}\n```\nThat is all.")
    ),
    "draft and final": _content(
        lambda f: f.says(f"First {_json(f)}, but on reflection {json.dumps(f.verdict)}")
    ),
    "cut inside": _content(lambda f: f.says(_json(f)[:-3])),
    # the scores
    "text for a number": _content(lambda f: f.scores(Correctness="8")),
    "float": _content(lambda f: f.scores(Correctness=8.0)),
    "true": _content(lambda f: f.scores(Completeness=True)),
    "null score": _content(lambda f: f.scores(Correctness=None)),
    "list": _content(lambda f: f.scores(Completeness=[8])),
    "11 of 10": _content(lambda f: f.scores(Correctness=11)),
    "minus one": _content(lambda f: f.scores(Correctness=-1)),
    "NaN": _content(lambda f: f.scores(Correctness=float("nan"))),
    "infinity": _content(lambda f: f.scores(Completeness=float("inf"))),
    "missing key": _content(lambda f: f.says(_without(f, "Completeness"))),
    "missing analysis": _content(lambda f: f.says(_without(f, "Analysis"))),
    "duplicate key": _content(lambda f: f.says(_json(f)[:-1] + ', "Correctness": 10}')),
    "extra key": _content(lambda f: f.scores(Overall=10)),
    "another request's answer": _foreign,
}
"""Every fault by name. "slow", "plain text" and "prose around" are usable; all others must not become a score."""

USABLE = frozenset({"slow", "plain text", "prose around"})
FINAL = frozenset({"400"})
"""Where the server says that asking again is of no use."""
