"""A stand-in for a vLLM rollout server: the routes the engine uses, on a real port.

It has no model. What it can show is what the engine sends, in which order, and what the engine makes of an answer: the
prompt's token ids are computed from the request's own pictures and text, "captions" are drawn by a generator seeded as
the request says, and weights are read from the files it is pointed to. Numbers that only a model can give are shown
with a real server by ``benchmarks/vllm_parity.py``.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from PIL import Image
from safetensors.numpy import load_file

from tests.patience import GUARD_S
from tests.sleeping import Sleeper
from vcap_jax.models.message import ImagePart, TextPart, VideoPart
from vcap_jax.models.qwen3_vl.processing import Processor
from vcap_jax.system.event_loop import LoopThread


class _Gone(Exception):
    """Whoever asked gets no answer."""


@web.middleware
async def _broken(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except _Gone:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


class RolloutServer:
    """Runs in a thread while the ``with`` block lasts.

    first_logprob: what is reported of a token that alone is allowed. development: whether the routes for weights exist.
    on_chat: called with (request, answer) before an answer is sent; may change the answer, or return a response to send
    instead. sleeper: its sleep mode, if it has one.
    """

    def __init__(
        self,
        processor: Processor,
        *,
        first_logprob: float = 0.0,
        development: bool = True,
        on_chat: Callable[[dict[str, Any], dict[str, Any]], web.Response | None] = lambda request, answer: (
            None
        ),
        sleeper: Sleeper | None = None,
    ) -> None:
        self.sleeper = sleeper
        self._processor, self._first_logprob, self._on_chat = processor, first_logprob, on_chat
        self._development = development
        self.calls: list[str] = []
        self.chats: list[dict[str, Any]] = []
        self.weights: list[dict[str, np.ndarray]] = []
        self.version = "default"
        self.crash_at: int | None = None
        """After so many chats it is gone, for as long as it takes to be asked twice how it is."""
        self.away = 0
        self.drops_caches = True
        """False: as while requests of others are running."""
        self.beside_reading: Callable[[], Awaitable[object]] | None = None
        """What somebody else does, once, while weights are read."""

    def __enter__(self) -> RolloutServer:
        self._loop = LoopThread("rollout server")
        self.url = self._loop.run(self._start(), GUARD_S)
        return self

    def start_anew(self) -> None:
        """As after a crash and a new start: it no longer has the weights that it was given."""
        self.version = "default"
        if self.sleeper is not None:
            self.sleeper.restart()

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._runner.cleanup(), GUARD_S)
        self._loop.close()

    async def _start(self) -> str:
        app = web.Application(client_max_size=2**26, middlewares=[_broken])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self._development:
            app.router.add_post("/collective_rpc", self._rpc)
            app.router.add_post("/reset_prefix_cache", self._reset)
            app.router.add_post("/reset_encoder_cache", self._reset)
            app.router.add_post("/update_weight_version", self._set_version)
            app.router.add_get("/weight_info", self._info)
        if self.sleeper is not None:
            app.router.add_routes(self.sleeper.routes())
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def _works(self, what: str) -> None:
        if self.sleeper is not None:
            self.sleeper.work(what)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "root": "served"}]})

    async def _completion(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._works("a completion")
        assert len(body["allowed_token_ids"]) == 1
        return web.json_response({"choices": [{"logprobs": {"token_logprobs": [self._first_logprob]}}]})

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(body["method"])
        if self.sleeper is not None:
            self.sleeper.take_weights()
        folder = Path(body["kwargs"]["weights_path"])
        assert (folder / "config.json").exists()
        files = sorted(folder.glob("*.safetensors"))
        self.weights.append({name: array for file in files for name, array in load_file(file).items()})
        beside, self.beside_reading = self.beside_reading, None
        if beside is not None:
            await beside()
        return web.json_response({"results": [None]})

    async def _reset(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if "prefix" in request.path:
            return web.json_response({"success": self.drops_caches})
        return web.Response()

    async def _set_version(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        self.version = (await request.json())["new_version"]
        return web.json_response({"success": True})

    async def _info(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        if self.away:
            self.away -= 1
            raise _Gone
        return web.json_response({"weight_version": self.version})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._works("a group")
        self.calls.append("chat")
        self.chats.append(body)
        if self.crash_at is not None and len(self.chats) > self.crash_at:
            self.crash_at = None
            self.away = 2
            self.start_anew()
        if self.away:
            raise _Gone
        answer = {
            "prompt_token_ids": self._prompt_of(body).tolist(),
            "choices": [self._choice(body, index) for index in range(body["n"])],
        }
        return self._on_chat(body, answer) or web.json_response(answer)

    def _prompt_of(self, body: dict[str, Any]) -> np.ndarray:
        content: list[Any] = []
        for part in body["messages"][0]["content"]:
            if part["type"] == "image_url":
                content.append(ImagePart(picture_of(part["image_url"]["url"].partition(",")[2])))
            elif part["type"] == "video_url":
                frames = [picture_of(data) for data in part["video_url"]["url"].split(",")[1:]]
                settings = body["media_io_kwargs"]["video"]
                assert settings["num_frames"] == -1
                assert settings["total_num_frames"] >= len(frames)
                times = [index / settings["fps"] for index in settings["frames_indices"]]
                content.append(VideoPart(np.stack(frames), times))
            else:
                content.append(TextPart(part["text"]))
        return self._processor.encode(content).tokens

    @staticmethod
    def _choice(body: dict[str, Any], index: int) -> dict[str, Any]:
        rng = np.random.default_rng(body["seed"] + index)
        forbidden = {*map(int, body["logit_bias"]), *body["stop_token_ids"]}
        ordinary = [token for token in range(100) if token not in forbidden]
        length = int(rng.integers(2, body["max_tokens"] + 1))
        ids = rng.choice(ordinary, length).tolist()
        ended = bool(rng.integers(2)) or length < body["max_tokens"]
        if ended:
            ids[-1] = body["stop_token_ids"][0]
        content = [{"logprob": -float(value)} for value in rng.exponential(1, length)]
        reason = "stop" if ended else "length"
        return {"index": index, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}


def picture_of(data: str) -> np.ndarray:
    """A base64 picture as pixels; it must be compressed without loss."""
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture)
