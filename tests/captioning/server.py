"""A server of OpenAI's chat format that captions: what it says depends on the pictures and the seed alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from aiohttp import web

from tests.patience import GUARD_S
from tests.reward.scripted_judge import greets
from vcap_jax.system.event_loop import LoopThread


class Captioning:
    """Answers with the pictures' hash and the seed.

    speechless: pictures that get nothing but blanks; endless: whose captions are cut off. finish: why all others end.
    thoughts: what stands before each, unless it is asked not to think. said: in place of each, if not "". lost:
    requests, by their number, that get a server error. owned_by: "vllm" makes it known as a server that keeps media.
    before: awaited before each answer, with the request.
    """

    def __init__(self) -> None:
        self.owned_by = "someone"
        self.bodies: list[dict] = []
        self.speechless: set[str] = set()
        self.endless: set[str] = set()
        self.finish, self.thoughts = "stop", ""
        self.said: str | None = ""
        self.lost: set[int] = set()
        self.before: Callable[[dict], Awaitable[object]] | None = None

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "a-captioner", "owned_by": self.owned_by}]})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if greets(body):
            return web.json_response({"error": {"message": "no picture"}}, status=400)
        self.bodies.append(body)
        if len(self.bodies) in self.lost:
            return web.json_response({"error": {"message": "busy"}}, status=500)
        if self.before is not None:
            await self.before(body)
        picture = picture_of(body)
        text = " " if picture in self.speechless else f"Picture {picture}, seed {body['seed']}."
        asked_not_to = body.get("chat_template_kwargs", {}).get("enable_thinking") is False
        text = text if asked_not_to else self.thoughts + text
        content = text if self.said == "" else self.said
        finish = "length" if picture in self.endless else self.finish
        choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content}}
        return web.json_response({"id": "x", "model": "a-captioner", "choices": [choice]})


def picture_of(body: dict) -> str:
    pictures = [part for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    # One that the server has been given is only named.
    urls = [part["uuid"] if part["image_url"] is None else part["image_url"]["url"] for part in pictures]
    return blake2b("".join(urls).encode(), digest_size=6).hexdigest()


@contextmanager
def served(captioning: Captioning) -> Iterator[str]:
    app = web.Application(client_max_size=2**26)
    app.add_routes(
        [web.get("/v1/models", captioning.models), web.post("/v1/chat/completions", captioning.chat)]
    )
    runner, loop = web.AppRunner(app), LoopThread("captioner")

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    try:
        yield f"http://127.0.0.1:{loop.run(start(), GUARD_S)}"
    finally:
        loop.run(runner.cleanup(), GUARD_S)
        loop.close()
