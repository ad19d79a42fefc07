"""ASGI middleware that runs inside vLLM: every path but ``/health`` asks for the key.

vLLM's own check covers ``/v1`` and a few other prefixes; ``/invocations``, ``/tokenize`` and ``/metrics`` would answer
anybody. Loaded by ``--middleware`` into vLLM's environment, so it imports the standard library only.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any  # noqa: TID251 - ASGI's own type of a message, whose values are of its kind

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_OPEN = ("/health",)


class KeyGuard:
    """Passes on what brings ``Authorization: Bearer KEY``, KEY being the value of ``VLLM_API_KEY``."""

    def __init__(self, app: App) -> None:
        key = os.environ.get("VLLM_API_KEY", "")
        if not key:
            raise RuntimeError("VLLM_API_KEY is not set: without a key nothing may be served beyond loopback")
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in _OPEN or self._brings_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = json.dumps({"error": {"message": "the API key is missing or wrong", "code": 401}}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _brings_key(self, scope: Message) -> bool:
        sent = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
        return hmac.compare_digest(sent, self._expected)
