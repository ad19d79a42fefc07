"""The OpenAI chat format over a judge: three routes, and errors the way OpenAI words them.

Whatever is read out of a request's body happens in one worker thread, a request at a time: the event loop stays free to
answer ``/health``, and the memory for decoding is needed once.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gpu_judge.bodies import Intake, Limits, Refusal, parse_object
from gpu_judge.embedded.request import BadRequest
from vcap_jax.system.digests import digest_of
from vcap_jax.system.json_values import JsonObject, JsonValue

_log = logging.getLogger(__name__)
_LONGEST_MESSAGE = 1000
"""Characters of an error: what is quoted may be of any length."""
_SWITCH_S = 0.0005
"""How long one thread may keep another waiting: an answer is sent in a dozen steps, each of which may wait so long."""


class Judge(Protocol):
    """What stands behind the embedded judge's address: answers the body of a chat completion request with the JSON
    object that its instruction asks for."""

    def answer(self, body: JsonObject) -> JsonObject:
        """The verdict; raises ``BadRequest`` where the request cannot be judged.

        Called from a thread of its own, for one request at a time.
        """
        ...


def build_app(
    judge: Judge, model: str, api_key: str | None = None, limits: Limits | None = None
) -> web.Application:
    """The application that serves ``judge`` under the name ``model``.

    api_key: what every request but ``/health`` must bring as ``Authorization: Bearer KEY``; None asks for nothing.
    limits: of request bodies.
    """
    bounds = limits or Limits()
    intake = Intake(bounds)
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="judge")

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def models(_: web.Request) -> web.Response:
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "vcap-jax"}
        return web.json_response({"object": "list", "data": [entry]})

    async def chat(request: web.Request) -> web.Response:
        identity = request.headers.get("X-Request-Id")

        def answer(body: bytearray) -> str:
            asked = parse_object(body, bounds)
            _check_supported(asked, model)
            return json.dumps(completion(asked, judge.answer(asked), model, identity))

        async with intake.body(request) as body:
            text = await asyncio.get_running_loop().run_in_executor(worker, answer, body)
        return web.json_response(text=text)

    async def working(_: web.Application) -> AsyncIterator[None]:
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        yield
        sys.setswitchinterval(before)
        worker.shutdown(wait=False, cancel_futures=True)

    app = web.Application(middlewares=[_openai_errors, _key_check(api_key)])
    app.cleanup_ctx.append(working)
    app.add_routes(
        [web.get("/health", health), web.get("/v1/models", models), web.post("/v1/chat/completions", chat)]
    )
    return app


def completion(body: JsonObject, verdict: JsonObject, model: str, identity: str | None = None) -> JsonObject:
    """A chat completion whose text is the verdict as JSON. "Tokens" are words, for want of a tokenizer.

    identity: what the request calls itself (``X-Request-Id``); it comes back in the id, so that the client can tell
    whose answer it has.
    """
    content = json.dumps(verdict, ensure_ascii=False)
    asked = _words(body["messages"])
    answered = len(content.split())
    return {
        "id": f"chatcmpl-{identity or digest_of(content, size=12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered},
    }


def _check_supported(body: JsonObject, model: str) -> None:
    """Refuses a request that asks for what this server does not do."""
    name = body.get("model")
    if not isinstance(name, str):
        what = "missing" if name is None else "no string"
        raise Refusal(400, f"'model' is {what}; this server has {model!r}", param="model")
    if name != model:
        raise Refusal(
            404,
            f"there is no model {name[:80]!r}; this server has {model!r}",
            param="model",
            code="model_not_found",
        )
    if body.get("stream"):
        raise Refusal(400, "answers are not streamed: leave out 'stream'", param="stream")
    if body.get("n", 1) not in (1, None):
        raise Refusal(400, "one answer per request: leave out 'n'", param="n")


def _words(messages: JsonValue) -> int:
    """How many words the texts of the messages have; what is no text has none."""
    count = 0
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else [{"text": content}]:
            text = part.get("text") if isinstance(part, Mapping) else None
            count += len(text.split()) if isinstance(text, str) else 0
    return count


def _key_check(api_key: str | None) -> Middleware:
    expected = None if api_key is None else f"Bearer {api_key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if expected is None or request.path == "/health" or hmac.compare_digest(sent, expected):
            return await handler(request)
        raise Refusal(401, "the API key is missing or wrong", code="invalid_api_key")

    return check


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns errors, aiohttp's own among them, into OpenAI's format."""
    try:
        return await handler(request)
    except Refusal as error:
        refusal = error
    except BadRequest as error:
        refusal = Refusal(400, str(error), param=error.param)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        refusal = Refusal(error.status, f"{request.method} {request.path}: {error.reason}")
    except Exception:
        _log.exception("a judgement failed")
        refusal = Refusal(500, "the judge failed on this request; its log says how")
    message = str(refusal)
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 3] + "..."
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": refusal.param, "code": refusal.code}},
        status=refusal.status,
        headers={} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)},
    )
