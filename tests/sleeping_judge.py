"""A judge with sleep mode before one that has none: it hands on what it is asked while it is awake."""

from __future__ import annotations

from typing import Self

import aiohttp
from aiohttp import web

from tests.patience import GUARD_S
from tests.sleeping import Sleeper
from vcap_jax.system.event_loop import LoopThread


class SleepingJudge:
    """Runs in a thread while the ``with`` block lasts. behind: the address of the judge that answers."""

    def __init__(self, behind: str, sleeper: Sleeper) -> None:
        self._behind, self.sleeper = behind, sleeper

    def __enter__(self) -> Self:
        self._loop = LoopThread("sleeping judge")
        self.url = self._loop.run(self._start(), GUARD_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._runner.cleanup(), GUARD_S)
        self._loop.close(self._session.close)

    async def _start(self) -> str:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        app = web.Application(client_max_size=2**26)
        app.router.add_routes(self.sleeper.routes())
        app.router.add_route("*", "/{path:.*}", self._hand_on)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _hand_on(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.sleeper.work(request.path)
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with self._session.request(
            request.method, self._behind + request.path, data=await request.read(), headers=headers
        ) as answer:
            body = await answer.read()
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)
