"""A study that is served inside a test, and people who talk to it as a browser does."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from vcap_jax.human_eval.application.server import Serving, serving
from vcap_jax.human_eval.study import Study


@dataclass
class Visitor:
    """Somebody with a session. name: sent as who answers; "" sends none."""

    http: aiohttp.ClientSession
    address: str
    name: str

    async def get(self, path: str, **more: object) -> tuple[int, str]:
        async with self.http.get(self.address + path, **more) as answer:
            return answer.status, await answer.text()

    async def json(self, path: str) -> dict:
        async with self.http.get(self.address + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def post(self, path: str, body: object = None, **headers: str) -> tuple[int, dict | str]:
        who = {"X-Annotator": self.name} if self.name else {}
        async with self.http.post(self.address + path, json=body, headers=who | headers) as answer:
            kind = answer.content_type
            return answer.status, await (answer.json() if kind == "application/json" else answer.text())

    async def answer(
        self, item: dict, one: dict, step1: str | None, step2: str | None = None, note: str = ""
    ):
        """Answers a proposition of a fetched item, and keeps the fetched item up to date."""
        before = item["verdicts"].get(one["key"], {"version": 0})
        said = {"prop": one["key"], "step1": step1, "step2": step2, "note": note}
        said |= {"version": before["version"], "request": secrets.token_hex(16)}
        status, told = await self.post(f"/api/item/{item['key']}/answer", said)
        if status == 200:
            item["verdicts"][one["key"]] = told
        return status, told

    async def finish(self, item: dict, **orders: list[str]):
        letters = [caption["letter"] for caption in item["captions"]]
        rankings = dict.fromkeys(("accuracy", "completeness", "granularity"), letters) | orders
        request = f"{self.name}-finish-{item['key']}"
        return await self.post(f"/api/item/{item['key']}/finish", {"rankings": rankings, "request": request})


@asynccontextmanager
async def served(study: Study) -> AsyncIterator[Serving]:
    async with serving(study) as server:
        yield server


@asynccontextmanager
async def visitor(server: Serving, name: str, *, enter: bool = True) -> AsyncIterator[Visitor]:
    jar = aiohttp.CookieJar(unsafe=True)  # addresses without names have cookies too
    async with aiohttp.ClientSession(cookie_jar=jar) as http:
        one = Visitor(http, server.address, name)
        if enter:
            status, _ = await one.post(server.links[name].removeprefix(server.address))
            assert status == 200, status  # after the redirect
        yield one


@asynccontextmanager
async def everybody(study: Study) -> AsyncIterator[tuple[Visitor, Visitor, Visitor, Visitor]]:
    """A served study with both annotators, the adjudicator and the owner."""
    async with (
        served(study) as server,
        visitor(server, "anna") as anna,
        visitor(server, "ben") as ben,
        visitor(server, "carla") as carla,
        visitor(server, "owner") as owner,
    ):
        yield anna, ben, carla, owner
