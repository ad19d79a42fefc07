"""Sleep mode of stand-in servers, with the states that vLLM 0.32 has, and a witness of whose turn it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

from aiohttp import web

State = Literal["awake", "weights", "asleep"]
"""weights: of a server that was asked to wake these up alone."""


async def at_once() -> None:
    """Nothing comes before an answer."""


class SharedDevices:
    """What servers and trainer of a test share. did: who did what, in order. wrong: what must not have been done."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.wrong: list[str] = []
        self.sleepers: list[Sleeper] = []

    def tell(self, what: str) -> None:
        self.did.append(what)


class Sleeper:
    """The sleep mode of one server, beside its other routes.

    name: in what ``devices`` notes. enabled: it was started with --enable-sleep-mode. keeps: it answers, and keeps its
    memory. share: of a GPU's memory; None on a CPU. broken: paths that are answered with a failure of the server.
    """

    def __init__(
        self,
        name: str,
        devices: SharedDevices,
        *,
        enabled: bool = True,
        state: State = "asleep",
        share: float | None = 0.3,
        broken: Iterable[str] = (),
    ) -> None:
        self.name, self._devices, self._enabled, self._share = name, devices, enabled, share
        self.state: State = state
        self.level: int | None = 1 if state == "asleep" else None
        self.broken = set(broken)
        self.has_weights = True
        self.on_wake: Callable[[], None] = lambda: None
        self.before_info: Callable[[], Awaitable[object]] = at_once
        self.away = 0
        """So many requests find nobody there; then it has been started anew, awake."""
        devices.sleepers.append(self)

    def restart(self, state: State = "awake") -> None:
        """As after a crash and a new start."""
        self.state, self.level, self.has_weights = state, None, True

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/is_sleeping", self._is_sleeping),
            web.get("/server_info", self._info),
            web.post("/sleep", self._sleep),
            web.post("/wake_up", self._wake_up),
        ]

    def work(self, what: str) -> None:
        """It is asked something that only a server can answer that is awake; vLLM would not, until it is."""
        if self.state != "awake":
            self._devices.wrong.append(f"{self.name} is {self.state} and asked: {what}")
        elif not self.has_weights:
            self._devices.wrong.append(f"{self.name} has no weights and is asked: {what}")

    def take_weights(self) -> None:
        """It is given new ones."""
        if self.state == "asleep":
            self._devices.wrong.append(f"{self.name} is asleep and given weights")
        self.has_weights = True

    def _failure(self, request: web.Request) -> web.Response | None:
        if self.away:
            self.away -= 1
            if not self.away:
                self.restart()
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.path in self.broken:
            return web.json_response({"detail": "EngineDeadError"}, status=500)
        return None

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        return self._failure(request) or web.json_response({"is_sleeping": self.state != "awake"})

    async def _info(self, request: web.Request) -> web.Response:
        config: dict[str, Any] = {
            "model_config": {"enable_sleep_mode": self._enabled},
            "device_config": {"device": "cpu" if self._share is None else "cuda"},
            "cache_config": {"gpu_memory_utilization": 0.92 if self._share is None else self._share},
        }
        assert request.query["config_format"] == "json"
        await self.before_info()
        return self._failure(request) or web.json_response({"vllm_config": config})

    async def _sleep(self, request: web.Request) -> web.Response:
        if (failure := self._failure(request)) is not None:
            return failure
        level = int(request.query["level"])
        if self.state == "awake":
            self.state, self.level = "asleep", level
            self.has_weights = level == 1
            self._devices.tell(f"{self.name} sleeps")
        return web.json_response({"status": "sleeping", "level": level})

    async def _wake_up(self, request: web.Request) -> web.Response:
        if (failure := self._failure(request)) is not None:
            return failure
        tags = request.query.getall("tags", [])
        if self.state == "asleep":
            self._devices.tell(f"{self.name} wakes up")
            self.on_wake()
            others = [s.name for s in self._devices.sleepers if s is not self and s.state != "asleep"]
            if others:
                self._devices.wrong.append(f"{self.name} wakes up beside {', '.join(others)}")
        if not tags or (self.state == "weights" and tags == ["kv_cache"]):
            self.state, self.level = "awake", None
        elif self.state == "asleep" and tags == ["weights"]:
            self.state = "weights"
        status = "awake" if self.state == "awake" else "sleeping"
        return web.json_response({"status": status, "tags": tags or None})
