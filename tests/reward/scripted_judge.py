"""A judge over real HTTP on 127.0.0.1 that does what the test scripts, in a thread and loop of its own."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.listening import accept_no_more
from tests.patience import GUARD_S
from tests.sleeping import Sleeper, at_once
from vcap_jax.reward.endpoint import GREETED
from vcap_jax.run.trial_question import TRIAL
from vcap_jax.system.event_loop import LoopThread

QUALITY = {"Analysis": "ok", "Correctness": 9, "Completeness": 8, "Text Quality": 7}
GLOBAL = {"Analysis": "ok", "Reasonability": 6, "Correctness": 9, "Completeness": 8}


@dataclass(kw_only=True)
class Reply:
    """One scripted answer; ``content`` None with ``raw`` set sends ``raw`` as the body.

    hold: it is sent once this is true (``never``: a server that hangs). delay: seconds that it takes longer.
    """

    content: str | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hold: Callable[[], bool] = lambda: True
    delay: float = 0.0
    finish_reason: str = "stop"
    raw: str | None = None
    drop: bool = False
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None


def verdict(values: dict[str, Any] | None = None, **changes: Any) -> Reply:
    """A good answer."""
    return Reply(content=json.dumps({**(values or QUALITY), **changes}))


def prompt_text(body: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in body["messages"][0]["content"] if part["type"] == "text")


def candidate_of(body: dict[str, Any]) -> str:
    found = re.search(r"<(generated_\w+)>\n(.*)\n</\1>", prompt_text(body), re.DOTALL)
    assert found, prompt_text(body)
    return found.group(2)


def asks_globally(body: dict[str, Any]) -> bool:
    return '"Reasonability"' in prompt_text(body)


def greets(body: dict[str, Any]) -> bool:
    """Whether it is what is asked before there is work, with pictures or without."""
    return bool(body["messages"][0]["content"][-1:] == [GREETED])


def tries(body: dict[str, Any]) -> bool:
    """Whether it is the trial question of a run."""
    return f"\n{TRIAL}\n" in prompt_text(body)


class ScriptedJudge:
    """``answer(body, n)`` gives the reply to the n-th chat request (from 0).

    greetings: what it was asked before there was work for it; greeting: the reply to that, greets: by its body. trials:
    a run's trial question, trial: the reply to that. before: awaited before it answers "health" or "greeting".
    tokenize, detokenize: what these addresses answer, or the status alone. owned_by: "vllm" makes it known as a server
    that keeps media. max_model_len: told with its models unless it is None.
    stop() and start() are a crash and a new start at the same address. sleeper: its sleep mode, if it has one.
    """

    def __init__(self, sleeper: Sleeper | None = None) -> None:
        self.sleeper = sleeper
        self.answer: Callable[[dict[str, Any], int], Reply] = lambda body, n: (
            verdict(GLOBAL) if asks_globally(body) else verdict()
        )
        self.trial = lambda body: self.answer(body, 0)
        self.trials: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.models: list[str] = ["the-judge"]
        self.health = 200
        self.models_status = 200
        self.models_raw: str | None = None
        self.greetings: list[dict[str, Any]] = []
        self.greeting = verdict()
        self.greets: Callable[[dict[str, Any]], Reply] = lambda body: self.greeting
        self.before: dict[str, Callable[[], Awaitable[Any]]] = {"health": at_once, "greeting": at_once}
        self.owned_by = "someone"
        self.max_model_len: Any = None
        self.tokenize: Callable[[dict[str, Any]], dict[str, Any] | int] = lambda body: 404
        self.detokenize: Callable[[dict[str, Any]], dict[str, Any] | int] = lambda body: 404
        self.running = self.most_running = 0
        self._loop = LoopThread("scripted judge")
        self.port = 0
        self.start()
        self.url = f"http://127.0.0.1:{self.port}/v1"

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/tokenize", self._extra)
        app.router.add_post("/detokenize", self._extra)
        if self.sleeper is not None:
            app.router.add_routes(self.sleeper.routes())
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self._socket = socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, self._socket).start()
        self.port = int(self._socket.getsockname()[1])

    async def _health(self, request: web.Request) -> web.Response:
        await self.before["health"]()
        return web.Response(status=self.health)

    async def _models(self, request: web.Request) -> web.Response:
        if self.models_raw is not None:
            return web.Response(text=self.models_raw, status=self.models_status, content_type="text/html")
        if self.models_status != 200:
            return web.json_response({"error": {"message": "no entry"}}, status=self.models_status)
        entries: list[dict[str, Any]] = [{"id": name, "owned_by": self.owned_by} for name in self.models]
        if self.max_model_len is not None:
            entries = [{**entry, "max_model_len": self.max_model_len} for entry in entries]
        return web.json_response({"object": "list", "data": entries})

    async def _extra(self, request: web.Request) -> web.Response:
        answer = self.tokenize if request.path == "/tokenize" else self.detokenize
        payload = answer(await request.json())
        if isinstance(payload, int):
            return web.json_response({"detail": "not now"}, status=payload)
        return web.json_response(payload)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.sleeper is not None:
            self.sleeper.work("a chat")
        if tries(body):
            self.trials.append(body)
            return await self._send(request, self.trial(body))
        if greets(body):
            self.greetings.append(body)
            await self.before["greeting"]()
            return await self._send(request, self.greets(body))
        number = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            reply = self.answer(body, number)
            async with asyncio.timeout(GUARD_S):
                while not reply.hold():
                    await asyncio.sleep(0.005)
            await asyncio.sleep(reply.delay)
        finally:
            self.running -= 1
        return await self._send(request, reply)

    async def _send(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        if reply.drop:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if reply.raw is not None:
            return web.Response(text=reply.raw, status=reply.status, headers=reply.headers)
        message = {"role": "assistant", "content": reply.content}
        payload: dict[str, Any] = {
            "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}]
        }
        if reply.usage is not None:
            payload["usage"] = reply.usage
        if reply.prompt_token_ids is not None:
            payload["prompt_token_ids"] = reply.prompt_token_ids
        return web.json_response(payload, status=reply.status, headers=reply.headers)

    async def _stop(self) -> None:
        await accept_no_more(self._socket)
        await self._runner.cleanup()

    def stop(self) -> None:
        """As a crash: connections break, nobody listens."""
        self._loop.run(self._stop(), GUARD_S)

    def start(self) -> None:
        self._loop.run(self._start(), GUARD_S)

    def close(self) -> None:
        self.stop()
        self._loop.close()


def never() -> bool:
    """Of a server that hangs."""
    return False
