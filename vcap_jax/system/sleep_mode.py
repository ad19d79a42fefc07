"""Sleep mode of vLLM servers over HTTP: one that sleeps leaves its GPUs' memory to others.

``/sleep``, ``/wake_up``, ``/is_sleeping`` and ``/server_info`` are routes of the server's development mode. Requests
that reach a sleeping server are answered when it is awake again, so nothing is asked of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import aiohttp

from vcap_jax.system.clock import Clock
from vcap_jax.system.connection_errors import broken_connection
from vcap_jax.system.errors import VCapError
from vcap_jax.system.json_values import JsonValue, parse_json

_SHOWN = 300

Level = Literal[1, 2]
"""1: the weights wait in the host's memory. 2: they are gone, and must be given again. Either forgets all caches."""
PINNED = 1.4
"""Times their size that weights take of the host while a server sleeps with them: PyTorch rounds each piece of pinned
memory up to a power of two (Qwen3-VL-8B's 16.3 GiB to 22.6)."""


class Limit(NamedTuple):
    """For one answer. setting: the configuration's name of it."""

    seconds: float
    setting: str


class SleepModeError(VCapError, RuntimeError):
    """A server that is there, and does not sleep or wake up as asked; the message says what to do."""

    resumable = True


class ServerGone(Exception):
    """The server is not there, or broken: it is worth waiting for. The message says what was seen."""


class SleepMode:
    """Of the server at ``root``, in one event loop.

    who: the server in words. session: gives the open HTTP session. first: for the answer that it makes once, of how it
    was started (vLLM collects what it runs on for that); limit: for any other. start: the command that starts such a
    server with sleep mode. key: what to do where it refuses the key that the session brings, or that there is none.
    """

    def __init__(
        self,
        root: str,
        who: str,
        session: Callable[[], aiohttp.ClientSession],
        *,
        first: Limit,
        limit: Limit,
        start: str,
        clock: Clock,
        key: str = "start it without one",
    ) -> None:
        self._key, self._root, self.who, self._session = key, root, who, session
        self.first, self._limit, self._start, self._clock = first, limit, start, clock

    async def check(self) -> float | None:
        """The share of each of its GPUs' memory that it takes when it is awake; None of a server on the CPU.

        There vLLM has no sleep mode: the server sleeps and wakes up as any other, and keeps its memory. Raises
        SleepModeError for a server that has none, ServerGone for one that is not there.
        """
        await self.sleeps()
        told = await self._asked("GET", "/server_info?config_format=json", limit=self.first)
        if _part(told, "vllm_config", "device_config", "device") == "cpu":
            return None
        if _part(told, "vllm_config", "model_config", "enable_sleep_mode") is not True:
            raise SleepModeError(
                f"{self.who} was started without --enable-sleep-mode, and would keep its memory while it sleeps: "
                f"start it with {self._start}"
            )
        share = _part(told, "vllm_config", "cache_config", "gpu_memory_utilization")
        return float(share) if isinstance(share, int | float) else None

    async def sleeps(self) -> bool:
        """Whether it sleeps. Raises SleepModeError where it cannot tell, ServerGone."""
        told = await self._asked("GET", "/is_sleeping")
        sleeping = told.get("is_sleeping") if isinstance(told, dict) else None
        if not isinstance(sleeping, bool):
            raise SleepModeError(
                f"{self.who} answers /is_sleeping with {str(told)[:_SHOWN]}: is this a vLLM server?"
            )
        return sleeping

    async def wake_up_weights(self) -> bool:
        """Returns once it has memory for its weights, which may be given to it then: True of one that goes on sleeping
        but for them, False of one that is awake. Raises ServerGone, SleepModeError."""
        if asleep := await self.sleeps():
            await self._asked("POST", "/wake_up?tags=weights")
        return asleep

    async def wake_up(self) -> None:
        """Returns once it is awake; one that is awake stays so. Raises ServerGone, SleepModeError."""
        await self._asked("POST", "/wake_up")
        if await self.sleeps():
            raise SleepModeError(
                f"{self.who} still sleeps after /wake_up: see its log, start it again with {self._start}, and "
                "continue with --resume"
            )

    async def sleep(self, level: Level) -> None:
        """Returns once it sleeps; what it was still asked is aborted. One that sleeps stays at the level it has.

        Raises ServerGone for one that is not there, whose memory is free too. Raises SleepModeError for one that keeps
        its memory.
        """
        try:
            await self._asked("POST", f"/sleep?level={level}", broken=SleepModeError)
            asleep = await self.sleeps()
        except SleepModeError as error:
            raise SleepModeError(
                f"{self.who} does not fall asleep, and whoever is next may not find the memory: {error}. See its log, "
                f"start it again with {self._start}, and continue with --resume"
            ) from error
        if not asleep:
            raise SleepModeError(
                f"{self.who} is awake after /sleep: start it again with {self._start}, and continue with --resume"
            )

    async def _asked(
        self,
        method: str,
        path: str,
        *,
        limit: Limit | None = None,
        broken: type[SleepModeError] | type[ServerGone] = ServerGone,
    ) -> JsonValue:
        """The answer. broken: raised where there is none in time, or the server says that it is broken."""
        limit = limit or self._limit
        try:
            async with (
                self._clock.deadline(limit.seconds),
                self._session().request(
                    method, self._root + path, timeout=aiohttp.ClientTimeout(total=None)
                ) as response,
            ):
                status, text = response.status, await response.text()
        except aiohttp.ClientError as error:
            raise ServerGone(f"{method} {path} failed: {broken_connection(error)}") from error
        except TimeoutError as error:
            raise broken(
                f"{method} {path} was not answered within {limit.seconds:g} s ({limit.setting})"
            ) from error
        if status >= 500:
            raise broken(f"{method} {path} was answered with {status}: {text[:_SHOWN].strip()}")
        if status in (401, 403):
            raise SleepModeError(f"{self.who} refuses the key ({method} {path}: {status}): {self._key}")
        if status in (404, 405):
            raise SleepModeError(
                f"{self.who} has no sleep mode ({method} {path}: {status}): start it with {self._start}"
            )
        if status != 200:
            raise SleepModeError(
                f"{self.who} answers {method} {path} with {status}: {text[:_SHOWN].strip()}: is this a vLLM server?"
            )
        try:
            return parse_json(text) if text else None
        except ValueError as error:
            raise SleepModeError(
                f"{self.who} answers {path} with {text[:_SHOWN]}: is this a vLLM server?"
            ) from error


def _part(told: JsonValue, *path: str) -> JsonValue:
    """What stands there in an answer; None where nothing does."""
    for key in path:
        told = told.get(key) if isinstance(told, dict) else None
    return told
