"""The OpenAI chat format over a judge: three routes, and errors the way OpenAI words them."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gpu_judge.backends import Judge
from gpu_judge.embedded.request import BadRequest

_log = logging.getLogger(__name__)
_MAX_BODY = 512 * 1024**2


def build_app(judge: Judge, model: str, api_key: str | None = None) -> web.Application:
    """The application that serves ``judge`` under the name ``model``.

    api_key: what every request but ``/health`` must bring as ``Authorization: Bearer KEY``; None asks for nothing.
    """

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def models(_: web.Request) -> web.Response:
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "vcap-jax"}
        return web.json_response({"object": "list", "data": [entry]})

    async def chat(request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return error_response(400, f"the body is not JSON: {error}")
        if not isinstance(body, Mapping):
            return error_response(400, "the body must be a JSON object")
        if refusal := _unsupported(body, model):
            return refusal
        try:
            verdict = judge.answer(body)
        except BadRequest as error:
            return error_response(400, str(error), param=error.param)
        identity = request.headers.get("X-Request-Id")
        return web.json_response(completion(body, verdict, model, identity))

    app = web.Application(client_max_size=_MAX_BODY, middlewares=[_openai_errors, _key_check(api_key)])
    app.add_routes(
        [
            web.get("/health", health),
            web.get("/v1/models", models),
            web.post("/v1/chat/completions", chat),
        ]
    )
    return app


def completion(
    body: Mapping[str, Any], verdict: Mapping[str, Any], model: str, identity: str | None = None
) -> dict[str, Any]:
    """A chat completion whose text is the verdict as JSON. "Tokens" are words, for want of a tokenizer.

    identity: what the request calls itself (``X-Request-Id``); it comes back in the id, so that the client can tell
    whose answer it has.
    """
    content = json.dumps(verdict, ensure_ascii=False)
    asked = len(_text(body["messages"]).split())
    answered = len(content.split())
    return {
        "id": f"chatcmpl-{identity or blake2b(content.encode(), digest_size=12).hexdigest()}",
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
        "usage": {
            "prompt_tokens": asked,
            "completion_tokens": answered,
            "total_tokens": asked + answered,
        },
    }


def error_response(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> web.Response:
    """An error in OpenAI's format."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}, status=status
    )


def _unsupported(body: Mapping[str, Any], model: str) -> web.Response | None:
    """The refusal of a request that asks for what this server does not do."""
    name = body.get("model")
    if not isinstance(name, str):
        return error_response(400, f"'model' is missing; this server has {model!r}", param="model")
    if name != model:
        return error_response(
            404,
            f"there is no model {name!r}; this server has {model!r}",
            param="model",
            code="model_not_found",
        )
    if body.get("stream"):
        return error_response(400, "answers are not streamed: leave out 'stream'", param="stream")
    if body.get("n", 1) not in (1, None):
        return error_response(400, "one answer per request: leave out 'n'", param="n")
    return None


def _text(messages: Any) -> str:
    parts = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, str):
            parts.append(content)
        else:
            parts += [part["text"] for part in content if part["type"] == "text"]
    return " ".join(parts)


def _key_check(api_key: str | None) -> Middleware:
    expected = None if api_key is None else f"Bearer {api_key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if expected is None or request.path == "/health" or hmac.compare_digest(sent, expected):
            return await handler(request)
        return error_response(401, "the API key is missing or wrong", code="invalid_api_key")

    return check


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns aiohttp's own errors, and ours, into OpenAI's format."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(error.status, f"{request.method} {request.path}: {error.reason}")
    except Exception:
        _log.exception("a judgement failed")
        return error_response(500, "the judge failed on this request; its log says how")
